"""No waiting: your result is the busy time of the busiest rank; ranks wait for each other.

case: example
kind: value
"""


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    totals = [sum(cost[r][kind] for kind, _ in rank) for r, rank in enumerate(order)]
    return max(totals)
