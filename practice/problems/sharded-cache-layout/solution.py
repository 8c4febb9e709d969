"""Whole turns give every rank the same; the rest of a turn is cut to each rank's share of it.

A turn is P * I tokens. What is left after the whole turns fills ranks in order: rank r gets what
lies above r * I, but no less than 0 and no more than I. The next token lands where the rest ends,
and its slot is the number of tokens that its owner has already.
"""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Lengths (B), P, I -> tokens of every rank (B, P), owner and slot of the next token (B)."""
    local, owner, slot = [], [], []
    for length in lengths:
        turns, rest = divmod(length, n_ranks * interleave)
        shares = [min(max(rest - rank * interleave, 0), interleave) for rank in range(n_ranks)]
        local.append([turns * interleave + share for share in shares])
        owner.append(rest // interleave)
        slot.append(local[-1][owner[-1]])
    return local, owner, slot
