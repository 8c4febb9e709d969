"""A cache dealt by token: how many tokens each rank has, and where the next one goes."""


def cache_layout(
    lengths: list[int], n_ranks: int, interleave: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Lengths (B), P, I -> tokens of every rank (B, P), owner and slot of the next token (B)."""
    raise NotImplementedError("write cache_layout here")
