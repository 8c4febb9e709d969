"""Not sorted: your bisection needs sorted keys; positions come in no order.

case: unsorted
kind: value
"""

from bisect import bisect_right


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    n_ranks = len(tokens)
    keys = [[p for p in mine if p >= 0] for mine in tokens]
    return [
        [
            sum(bisect_right(keys[(rank - step) % n_ranks], q) for q in keys[rank])
            for rank in range(n_ranks)
        ]
        for step in range(n_ranks)
    ]
