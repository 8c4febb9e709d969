"""Contiguous: your rank has blocks 2r and 2r + 1, an early or a late stretch; pair
block r with block 2P - 1 - r.

case: example
kind: shape
"""

from itertools import pairwise


def zigzag(n_tokens: int, n_ranks: int) -> tuple[list[list[int]], list[int]]:
    size, longer = divmod(n_tokens, 2 * n_ranks)
    starts = [b * size + min(b, longer) for b in range(2 * n_ranks + 1)]
    blocks = [list(range(a, b)) for a, b in pairwise(starts)]
    tokens = [blocks[2 * rank] + blocks[2 * rank + 1] for rank in range(n_ranks)]
    place = [0] * n_tokens
    for index, token in enumerate(token for mine in tokens for token in mine):
        place[token] = index
    return tokens, place
