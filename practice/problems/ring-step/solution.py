"""Blocks move forward in the circle, so a rank has the block of the one `step` places before it.

Places in the circle and numbers of ranks are different things: the arithmetic is done on places,
and `ring` turns them into numbers. What arrives during a step is what the rank computes with at the
next one.
"""


def ring_step(ring: list[int], step: int) -> tuple[list[int], list[int], list[int | None]]:
    """Circle (P), step -> block of each rank, holder of each block, block arriving at each rank."""
    n_ranks = len(ring)
    block, holder = [0] * n_ranks, [0] * n_ranks
    arriving: list[int | None] = [None] * n_ranks
    for place, rank in enumerate(ring):
        block[rank] = ring[(place - step) % n_ranks]
        holder[block[rank]] = rank
        if step < n_ranks - 1:
            arriving[rank] = ring[(place - step - 1) % n_ranks]
    return block, holder, arriving
