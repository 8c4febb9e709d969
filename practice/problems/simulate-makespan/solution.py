"""Run each rank as far as it can go, and come back as long as some rank still moves.

When an operation starts depends on ends that are known for good once they are known, so it does not
matter in which order the ranks are visited. If a whole round moves no rank although operations are
left, each of them waits for one that will never end: the order is impossible.

GPipe and 1F1B take the same time only while stages are equal. With P = 4, M = 8, F = 1 and B = 2
both take 33. With a first stage twice as slow GPipe takes 57 and 1F1B 51: in 1F1B the first rank
works on backwards while GPipe makes it wait for all forwards. With a last stage twice as slow both
take 57.
"""


def needs(kind: str, m: int, r: int, P: int) -> list[tuple[str, int, int]]:
    """The operations of all ranks that must have ended first, as (kind, microbatch, rank)."""
    if kind == "F":
        return [("F", m, r - 1)] if r > 0 else []
    return [("F", m, r)] + ([("B", m, r + 1)] if r < P - 1 else [])


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    """Operations and their times per rank -> the end of the last one, None if one never starts."""
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
