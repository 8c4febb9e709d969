"""Rounded up: your blocks all have ceil(S / 2P) tokens, so the last ones get too few.

case: example
kind: shape
"""


def zigzag(n_tokens: int, n_ranks: int) -> tuple[list[list[int]], list[int]]:
    size = -(-n_tokens // (2 * n_ranks))
    blocks = [
        list(range(min(b * size, n_tokens), min((b + 1) * size, n_tokens)))
        for b in range(2 * n_ranks)
    ]
    tokens = [blocks[rank] + blocks[-1 - rank] for rank in range(n_ranks)]
    place = [0] * n_tokens
    for index, token in enumerate(token for mine in tokens for token in mine):
        place[token] = index
    return tokens, place
