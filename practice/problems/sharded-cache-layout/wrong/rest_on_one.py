"""Rest on one rank: your rest of a turn goes to one rank whole; it fills ranks in order.

case: example
kind: value
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    local, owner, slot = [], [], []
    for length in lengths:
        turns, rest = divmod(length, n_ranks * interleave)
        shares = [rest * (rank == rest // interleave) for rank in range(n_ranks)]
        local.append([turns * interleave + share for share in shares])
        owner.append(rest // interleave)
        slot.append(local[-1][owner[-1]])
    return local, owner, slot
