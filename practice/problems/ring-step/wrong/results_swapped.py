"""Results swapped: your first list is that of the holders; `block` comes first.

case: example
kind: value
"""


def ring_step(ring: list[int], step: int) -> tuple[list[int], list[int], list[int | None]]:
    n_ranks = len(ring)
    block, holder = [0] * n_ranks, [0] * n_ranks
    arriving: list[int | None] = [None] * n_ranks
    for place, rank in enumerate(ring):
        block[rank] = ring[(place - step) % n_ranks]
        holder[block[rank]] = rank
        if step < n_ranks - 1:
            arriving[rank] = ring[(place - step - 1) % n_ranks]
    return holder, block, arriving
