"""Ranks reversed: your rank 0 has no warm-up; it is the first stage, with all others behind it.

case: first-rank
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(rank, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    return order + [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
