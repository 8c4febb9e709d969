"""Backward first: your pairs start with the backward, so one forward too few has run by then.

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(n_ranks - 1 - rank, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("B", m - warm_up), ("F", m)]
    return order + [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
