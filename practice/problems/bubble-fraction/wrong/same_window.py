"""One window for all: your per-stage span looks at the whole makespan; it looks at one rank's span.

case: example
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    busy = sum(end - start for rank in timeline for start, end in rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends) - min(start for start, _ in ends)
    P = len(timeline)
    share = (P * makespan - busy) / (P * makespan)
    return {
        "bubble/ideal": (P * makespan - busy) / busy,
        "bubble/makespan": share,
        "per-stage span": share,
    }
