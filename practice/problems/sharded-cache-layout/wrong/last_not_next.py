"""Last token, not next: your `owner` and `slot` are those of the token stored last.

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
        owner.append(max(length - 1, 0) // interleave % n_ranks)
        slot.append(max(local[-1][owner[-1]] - 1, 0))
    return local, owner, slot
