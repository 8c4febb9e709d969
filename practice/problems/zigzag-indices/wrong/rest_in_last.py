"""Rest in the last block: your last block has all tokens left over; lengths differ by at most
one.

case: example
kind: shape
"""

from itertools import pairwise


def zigzag(n_tokens: int, n_ranks: int) -> tuple[list[list[int]], list[int]]:
    size = n_tokens // (2 * n_ranks)
    starts = [b * size if b < 2 * n_ranks else n_tokens for b in range(2 * n_ranks + 1)]
    blocks = [list(range(a, b)) for a, b in pairwise(starts)]
    tokens = [blocks[rank] + blocks[-1 - rank] for rank in range(n_ranks)]
    place = [0] * n_tokens
    for index, token in enumerate(token for mine in tokens for token in mine):
        place[token] = index
    return tokens, place
