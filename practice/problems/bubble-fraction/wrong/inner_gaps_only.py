"""Gaps only: your idle time has the gaps between operations, not the waits at start and end.

case: example
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    busy = sum(end - start for rank in timeline for start, end in rank)
    idle = sum(rank[-1][1] - rank[0][0] for rank in timeline if rank) - busy
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends) - min(start for start, _ in ends)
    span = max(end - start for start, end in ends)
    P = len(timeline)
    return {
        "bubble/ideal": idle / busy,
        "bubble/makespan": idle / (P * makespan),
        "per-stage span": (P * span - busy) / (P * span),
    }
