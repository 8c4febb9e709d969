"""Counted from 1: your micro-batches are 1 to M; they count from 0.

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(n_ranks - 1 - rank, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    order += [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
    return [(kind, m + 1) for kind, m in order]
