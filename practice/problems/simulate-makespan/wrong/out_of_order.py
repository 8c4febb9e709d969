"""Out of order: your rank runs whatever is ready first; it must keep to its list.

case: gpipe-slow-first
kind: value
"""


def needs(kind: str, m: int, r: int, P: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", m, r - 1)] if r > 0 else []
    return [("F", m, r)] + ([("B", m, r + 1)] if r < P - 1 else [])


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    P = len(order)
    ends: dict[tuple[str, int, int], int] = {}
    clock = [0] * P
    left = [{k: [m for kind, m in rank if kind == k][::-1] for k in "FB"} for rank in order]
    while any(ms for rank in left for ms in rank.values()):
        ready = []
        for r, rank in enumerate(left):
            for kind in "FB":
                earlier = needs(kind, rank[kind][-1], r, P) if rank[kind] else ()
                if rank[kind] and all(need in ends for need in earlier):
                    arrivals = [ends[need] + transfer * (need[2] != r) for need in earlier]
                    ready.append((max(clock[r], *arrivals, 0), r, kind))
        if not ready:
            return None
        start, r, kind = min(ready)
        clock[r] = ends[kind, left[r][kind].pop(), r] = start + cost[r][kind]
    return max(clock)
