"""One forward too many: your warm-up has P - r forwards; the last of them belongs to the first
pair.

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(n_ranks - rank, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    return order + [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
