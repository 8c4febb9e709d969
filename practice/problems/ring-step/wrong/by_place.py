"""By place: your lists are in the order of the circle; index them by the number of the rank.

case: example
kind: value
"""


def ring_step(ring: list[int], step: int) -> tuple[list[int], list[int], list[int | None]]:
    n_ranks = len(ring)
    block = [ring[(place - step) % n_ranks] for place in range(n_ranks)]
    holder = [ring[(place + step) % n_ranks] for place in range(n_ranks)]
    arriving = [ring[(place - step - 1) % n_ranks] for place in range(n_ranks)]
    return block, holder, arriving if step < n_ranks - 1 else [None] * n_ranks
