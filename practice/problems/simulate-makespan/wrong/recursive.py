"""Recursion: a chain of needs is longer than Python's stack; run forward in time instead.

case: large
kind: exception
"""


def makespan(order: list[list[tuple[str, int]]], cost: list[dict], transfer: int) -> int | None:
    P = len(order)
    place = {(*op, r): i for r, rank in enumerate(order) for i, op in enumerate(rank)}
    known: dict[tuple[str, int, int], float] = {}

    def end(kind: str, m: int, r: int) -> float:
        if (kind, m, r) not in place:
            return float("inf")
        if (kind, m, r) not in known:
            known[kind, m, r] = float("inf")
            i = place[kind, m, r]
            start = end(*order[r][i - 1], r) if i else 0
            if kind == "F" and r > 0:
                start = max(start, end("F", m, r - 1) + transfer)
            if kind == "B":
                start = max(start, end("F", m, r))
                if r < P - 1:
                    start = max(start, end("B", m, r + 1) + transfer)
            known[kind, m, r] = start + cost[r][kind]
        return known[kind, m, r]

    last = max(end(*op, r) for r, rank in enumerate(order) for op in rank[::-1])
    return None if last == float("inf") else int(last)
