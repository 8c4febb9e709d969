"""Own forward not awaited: your backward does not wait for the rank's own forward; if that comes
later or never, there is no makespan.

case: backwards-alone
kind: type
"""


def needs(kind: str, m: int, r: int, P: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", m, r - 1)] if r > 0 else []
    return [("B", m, r + 1)] if r < P - 1 else []


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
                arrivals = [ends[need] + transfer * (need[2] != r) for need in earlier]
                clock[r] = max(clock[r], *arrivals, 0) + cost[r][kind]
                ends[kind, m, r] = clock[r]
                n_done[r] += 1
                moved = True
    finished = all(n == len(ops) for n, ops in zip(n_done, order, strict=True))
    return max(clock) if finished else None
