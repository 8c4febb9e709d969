"""Lockstep: your ranks all wait for the slowest one after each operation; they are not tied
together.

case: example
kind: value
"""


def needs(kind: str, m: int, r: int, P: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", m, r - 1)] if r > 0 else []
    return [("F", m, r)] + ([("B", m, r + 1)] if r < P - 1 else [])


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    P = len(order)
    done: set[tuple[str, int, int]] = set()
    n_done, now = [0] * P, 0
    while True:
        step = []
        for r in range(P):
            if n_done[r] < len(order[r]):
                kind, m = order[r][n_done[r]]
                if all(need in done for need in needs(kind, m, r, P)):
                    step.append((kind, m, r))
        if not step:
            break
        for kind, m, r in step:
            done.add((kind, m, r))
            n_done[r] += 1
        now += max(cost[r][kind] for kind, _, r in step) + transfer
    finished = all(n == len(ops) for n, ops in zip(n_done, order, strict=True))
    return now if finished else None
