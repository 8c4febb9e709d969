"""What zigzag can skip: for each step of the ring, the one call that computes what is visible."""


def kernel_calls(n_tokens: int, n_ranks: int, rank: int) -> list[tuple[int, int, int, int, bool]]:
    """S, P, r -> for each step (q_start, q_stop, k_start, k_stop, causal)."""
    raise NotImplementedError("write kernel_calls here")
