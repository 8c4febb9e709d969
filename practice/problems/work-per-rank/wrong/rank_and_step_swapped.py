"""Rank and step swapped: your result is [rank][step]; step comes first.

case: example
kind: value
"""

from bisect import bisect_right


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    n_ranks = len(tokens)
    keys = [sorted(p for p in mine if p >= 0) for mine in tokens]
    by_step = [
        [
            sum(bisect_right(keys[(rank - step) % n_ranks], q) for q in keys[rank])
            for rank in range(n_ranks)
        ]
        for step in range(n_ranks)
    ]
    return [list(row) for row in zip(*by_step, strict=True)]
