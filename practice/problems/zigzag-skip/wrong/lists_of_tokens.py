"""Lists of tokens: your answer is right and too large for long sequences; lengths are enough.

case: long
kind: memory
"""

from itertools import pairwise


def kernel_calls(n_tokens: int, n_ranks: int, rank: int) -> list[tuple[int, int, int, int, bool]]:
    size, longer = divmod(n_tokens, 2 * n_ranks)
    starts = [b * size + min(b, longer) for b in range(2 * n_ranks + 1)]
    blocks = [list(range(a, b)) for a, b in pairwise(starts)]
    half, n_queries = len(blocks[rank]), len(blocks[rank] + blocks[-1 - rank])
    calls = [(0, n_queries, 0, n_queries, True)]
    for step in range(1, n_ranks):
        source = (rank - step) % n_ranks
        if source < rank:
            calls.append((0, n_queries, 0, len(blocks[source]), False))
        else:
            both = len(blocks[source] + blocks[-1 - source])
            calls.append((half, n_queries, 0, both, False))
    return calls
