"""One by one: your result adds up all operations; ranks compute at the same time.

case: example
kind: value
"""


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    return sum(cost[r][kind] for r, rank in enumerate(order) for kind, _ in rank)
