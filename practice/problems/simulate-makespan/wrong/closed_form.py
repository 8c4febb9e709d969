"""Closed form: your result is (M + P - 1) times the slowest stage, which holds for equal stages
only.

case: example
kind: value
"""


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    n_microbatches = len({m for rank in order for _, m in rank})
    slowest = max(times["F"] + times["B"] for times in cost)
    return (n_microbatches + len(order) - 1) * slowest
