"""Mean of the ranks: your bubble/ideal averages a ratio per rank; add up over ranks, then divide.

case: unequal-spans
kind: value
"""


def bubbles(timeline: list[list[tuple[float, float]]]) -> dict:
    per_rank = [sum(end - start for start, end in rank) for rank in timeline]
    busy = sum(per_rank)
    ends = [(rank[0][0], rank[-1][1]) for rank in timeline if rank]
    makespan = max(end for _, end in ends) - min(start for start, _ in ends)
    span = max(end - start for start, end in ends)
    P = len(timeline)
    return {
        "bubble/ideal": sum((makespan - own) / own for own in per_rank) / P,
        "bubble/makespan": (P * makespan - busy) / (P * makespan),
        "per-stage span": (P * span - busy) / (P * span),
    }
