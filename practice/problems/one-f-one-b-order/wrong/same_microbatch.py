"""Same micro-batch in a pair: your backward belongs to the forward before it, whose gradient is
not there yet.

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(n_ranks - 1 - rank, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m)]
    return order + [("B", m) for m in range(warm_up)]
