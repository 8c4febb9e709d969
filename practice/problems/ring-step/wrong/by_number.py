"""By number: your blocks go from rank r to rank r + 1; they follow `ring`.

case: example
kind: value
"""


def ring_step(ring: list[int], step: int) -> tuple[list[int], list[int], list[int | None]]:
    n_ranks = len(ring)
    block, holder = [0] * n_ranks, [0] * n_ranks
    arriving: list[int | None] = [None] * n_ranks
    for rank in range(n_ranks):
        block[rank] = (rank - step) % n_ranks
        holder[block[rank]] = rank
        if step < n_ranks - 1:
            arriving[rank] = (rank - step - 1) % n_ranks
    return block, holder, arriving
