"""Transfer after the rank is free: your transfer takes time from a rank, the receiver or the
sender; it costs neither: start at max(rank free, end + transfer).

case: example
kind: value
"""


def needs(kind: str, m: int, r: int, P: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", m, r - 1)] if r > 0 else []
    return [("F", m, r)] + ([("B", m, r + 1)] if r < P - 1 else [])


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    P = len(order)
    ends: dict[tuple[str, int, int], int] = {}
    clock, n_done, moved = [0] * P, [0] * P, True
    while moved:
        moved = False
        for r in range(P):
            while n_done[r] < len(order[r]):
                kind, m = order[r][n_done[r]]
                earlier = needs(kind, m, r, P)
                if any(need not in ends for need in earlier):
                    break
                travels = transfer * any(need[2] != r for need in earlier)
                arrived = max(clock[r], *(ends[need] for need in earlier), 0)
                clock[r] = arrived + travels + cost[r][kind]
                ends[kind, m, r] = clock[r]
                n_done[r] += 1
                moved = True
    finished = all(n == len(ops) for n, ops in zip(n_done, order, strict=True))
    return max(clock) if finished else None
