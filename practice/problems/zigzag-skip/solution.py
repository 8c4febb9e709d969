"""Own keys: a triangle. Keys of an earlier rank: their first block. Of a later one: all of them.

Let the keys come from rank j. Block j is before block r if j < r, and then block 2P - 1 - j is
after block 2P - 1 - r: both blocks of queries see the first block of keys and nothing of the
second. If j > r, block r sees neither, and block 2P - 1 - r comes after both. The two blocks of a
rank need not be equal: queries are cut by the lengths of this rank's blocks, keys by those of rank
j's.
"""


def kernel_calls(n_tokens: int, n_ranks: int, rank: int) -> list[tuple[int, int, int, int, bool]]:
    """S, P, r -> for each step (q_start, q_stop, k_start, k_stop, causal)."""
    size, longer = divmod(n_tokens, 2 * n_ranks)

    def halves(of_rank: int) -> tuple[int, int]:
        """Tokens in the first block of a rank, and in both."""
        first = size + (of_rank < longer)
        return first, first + size + (2 * n_ranks - 1 - of_rank < longer)

    q_half, n_queries = halves(rank)
    calls = [(0, n_queries, 0, n_queries, True)]
    for step in range(1, n_ranks):
        source = (rank - step) % n_ranks
        k_half, n_keys = halves(source)
        if source < rank:
            calls.append((0, n_queries, 0, k_half, False))
        else:
            calls.append((q_half, n_queries, 0, n_keys, False))
    return calls
