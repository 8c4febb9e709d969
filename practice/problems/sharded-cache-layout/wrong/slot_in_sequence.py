"""Slot in the sequence: your `slot` is the token's index in the whole sequence; count the tokens
of its rank.

case: example
kind: value
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    local, owner, slot = [], [], []
    for length in lengths:
        turns, rest = divmod(length, n_ranks * interleave)
        shares = [min(max(rest - rank * interleave, 0), interleave) for rank in range(n_ranks)]
        local.append([turns * interleave + share for share in shares])
        owner.append(rest // interleave)
        slot.append(length)
    return local, owner, slot
