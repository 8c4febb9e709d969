"""Below zero: your ranks that come after the rest lose tokens; their share of it is 0.

case: example
kind: value
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    local, owner, slot = [], [], []
    for length in lengths:
        turns, rest = divmod(length, n_ranks * interleave)
        shares = [min(rest - rank * interleave, interleave) for rank in range(n_ranks)]
        local.append([turns * interleave + share for share in shares])
        owner.append(rest // interleave)
        slot.append(local[-1][owner[-1]])
    return local, owner, slot
