"""Itself unseen: your queries do not see their own key; the rule is n <= m.

case: example
kind: value
"""

from bisect import bisect_left


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    n_ranks = len(tokens)
    keys = [sorted(p for p in mine if p >= 0) for mine in tokens]
    return [
        [
            sum(bisect_left(keys[(rank - step) % n_ranks], q) for q in keys[rank])
            for rank in range(n_ranks)
        ]
        for step in range(n_ranks)
    ]
