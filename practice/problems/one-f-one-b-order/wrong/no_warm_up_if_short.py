"""No warm-up for short steps: with M < P your rank runs each backward right after its forward.

case: fewer
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = n_ranks - 1 - rank if n_microbatches >= n_ranks else 0
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    return order + [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
