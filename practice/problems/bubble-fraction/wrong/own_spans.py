"""Own spans: your per-stage span lets each rank have its own span; the longest counts for all.

case: gpipe
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    busy = sum(end - start for rank in timeline for start, end in rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends) - min(start for start, _ in ends)
    spans = sum(end - start for start, end in ends)
    P = len(timeline)
    return {
        "bubble/ideal": (P * makespan - busy) / busy,
        "bubble/makespan": (P * makespan - busy) / (P * makespan),
        "per-stage span": (spans - busy) / spans,
    }
