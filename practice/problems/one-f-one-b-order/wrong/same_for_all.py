"""Same warm-up for all: your warm-up is that of rank 0; a rank counts only the ranks behind it.

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(n_ranks - 1, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    return order + [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
