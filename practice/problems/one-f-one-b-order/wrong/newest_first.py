"""Newest first: your backwards take the micro-batch that went forward last; they keep the order 0,
1, ...

case: example
kind: value
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(n_ranks - 1 - rank, n_microbatches)
    held = list(range(warm_up))
    order = [("F", m) for m in held]
    for m in range(warm_up, n_microbatches):
        held.append(m)
        order += [("F", m), ("B", held.pop())]
    return order + [("B", m) for m in reversed(held)]
