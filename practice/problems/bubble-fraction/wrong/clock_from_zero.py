"""Clock from zero: your makespan is the last end; subtract the first start.

case: clock
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    busy = sum(end - start for rank in timeline for start, end in rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends)
    span = max(end - start for start, end in ends)
    P = len(timeline)
    return {
        "bubble/ideal": (P * makespan - busy) / busy,
        "bubble/makespan": (P * makespan - busy) / (P * makespan),
        "per-stage span": (P * span - busy) / (P * span),
    }
