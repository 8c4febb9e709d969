"""Swapped: you treat keys of earlier ranks as those of later ranks, and the other way round.

case: example
kind: value
"""


def kernel_calls(n_tokens: int, n_ranks: int, rank: int) -> list[tuple[int, int, int, int, bool]]:
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
        if source > rank:
            calls.append((0, n_queries, 0, k_half, False))
        else:
            calls.append((q_half, n_queries, 0, n_keys, False))
    return calls
