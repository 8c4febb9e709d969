"""Cut into 2P blocks, pair block r with block 2P - 1 - r, and note where every token lands.

Block b starts after b blocks of S // 2P tokens and the longer ones among them have one more, of
which there are min(b, S % 2P). `place` is the inverse of the joined lists: a token's place is found
by going through the joined lists, not by reading them at the token.
"""

from itertools import pairwise


def zigzag(n_tokens: int, n_ranks: int) -> tuple[list[list[int]], list[int]]:
    """S, P -> tokens of every rank, and the index of every token when those lists are joined."""
    size, longer = divmod(n_tokens, 2 * n_ranks)
    starts = [b * size + min(b, longer) for b in range(2 * n_ranks + 1)]
    blocks = [list(range(a, b)) for a, b in pairwise(starts)]
    tokens = [blocks[rank] + blocks[-1 - rank] for rank in range(n_ranks)]
    place = [0] * n_tokens
    for index, token in enumerate(token for mine in tokens for token in mine):
        place[token] = index
    return tokens, place
