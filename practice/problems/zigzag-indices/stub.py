"""Zigzag indices: which tokens each rank has, and where each token went."""


def zigzag(n_tokens: int, n_ranks: int) -> tuple[list[list[int]], list[int]]:
    """S, P -> tokens of every rank, and the index of every token when those lists are joined."""
    raise NotImplementedError("write zigzag here")
