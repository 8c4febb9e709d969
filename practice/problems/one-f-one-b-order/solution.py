"""Three loops for three phases; the cap on the warm-up is all that M < P needs.

With M <= P - 1 - r the warm-up takes every forward, the steady phase is empty, and the cool-down
runs all backwards: on the first ranks, 1F1B of a short step is GPipe. The last rank has no warm-up
and runs each backward right after its forward. There is another way to say the same: run a forward
while fewer than P - r micro-batches are held and one is left, otherwise the oldest backward.
"""


def one_f_one_b(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    """The operations of one rank in order: ("F", m) and ("B", m)."""
    warm_up = min(n_ranks - 1 - rank, n_microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(warm_up, n_microbatches):
        order += [("F", m), ("B", m - warm_up)]
    return order + [("B", m) for m in range(n_microbatches - warm_up, n_microbatches)]
