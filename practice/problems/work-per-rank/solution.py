"""Sort the keys of every rank once; each query then finds how many it sees by bisection.

No formula for a layout is needed: what is visible follows from positions. Dealt in order, the last
rank has nearly 2P - 1 times the pairs of the first. In zigzag, rank r has chunks r and 2P - 1 - r,
an early and a late one, and all ranks have the same number at every step.
"""

from bisect import bisect_right


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    """Positions of every rank -> [step][rank] pairs of query and key that it computes."""
    n_ranks = len(tokens)
    keys = [sorted(p for p in mine if p >= 0) for mine in tokens]
    return [
        [
            sum(bisect_right(keys[(rank - step) % n_ranks], q) for q in keys[rank])
            for rank in range(n_ranks)
        ]
        for step in range(n_ranks)
    ]
