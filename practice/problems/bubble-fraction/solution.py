"""Idle time is a window times the number of ranks, minus the busy time; the metrics differ in what
the window is and what they divide by.

Ranks that never computed have no first start, so they are left out where the window is sought, but
they count in `len(timeline)`: they were idle too. The per-stage span takes the longest span, not
each rank's own: the slowest rank sets the pace at which steps can follow each other. It forgives
the staircase at the start and the end of a step, which is why a schedule can have a bubble of zero
there and still a makespan above its work.
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    """(start, end) of each rank's operations -> the bubble under three named metrics."""
    busy = sum(end - start for rank in timeline for start, end in rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends) - min(start for start, _ in ends)
    span = max(end - start for start, end in ends)
    P = len(timeline)
    return {
        "bubble/ideal": (P * makespan - busy) / busy,
        "bubble/makespan": (P * makespan - busy) / (P * makespan),
        "per-stage span": (P * span - busy) / (P * span),
    }
