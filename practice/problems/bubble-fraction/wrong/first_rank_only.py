"""First rank's window: your makespan is the time from first start to last end of rank 0 alone.

case: example
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    busy = sum(end - start for rank in timeline for start, end in rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = ends[0][1] - ends[0][0]
    span = max(end - start for start, end in ends)
    P = len(timeline)
    return {
        "bubble/ideal": (P * makespan - busy) / busy,
        "bubble/makespan": (P * makespan - busy) / (P * makespan),
        "per-stage span": (P * span - busy) / (P * span),
    }
