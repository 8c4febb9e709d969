"""Padding counted: your keys at position -1 are seen by everybody; nobody sees them.

case: padding
kind: value
"""

from bisect import bisect_right


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    n_ranks = len(tokens)
    keys = [sorted(mine) for mine in tokens]
    return [
        [
            sum(bisect_right(keys[(rank - step) % n_ranks], q) for q in keys[rank] if q >= 0)
            for rank in range(n_ranks)
        ]
        for step in range(n_ranks)
    ]
