"""Makespan counted once: your idle time is one makespan minus the busy time of all ranks together.

case: example
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    busy = sum(end - start for rank in timeline for start, end in rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends) - min(start for start, _ in ends)
    span = max(end - start for start, end in ends)
    return {
        "bubble/ideal": (makespan - busy) / busy,
        "bubble/makespan": (makespan - busy) / makespan,
        "per-stage span": (span - busy) / span,
    }
