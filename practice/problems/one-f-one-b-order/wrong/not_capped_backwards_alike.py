"""Both phases beyond M: your warm-up and your cool-down do not stop at M; with fewer micro-batches
than ranks behind, all M forwards are warm-up, and M backwards are left.

case: fewer
kind: shape
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = n_ranks - 1 - rank
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    first_left = max(0, n_microbatches - warm_up)
    return order + [("B", m) for m in range(first_left, first_left + warm_up)]
