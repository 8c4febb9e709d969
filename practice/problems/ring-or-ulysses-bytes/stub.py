"""Ring or Ulysses, in bytes: what one rank sends in one layer, forward and backward."""


def bytes_sent(
    method: str,
    n_ranks: int,
    n_tokens: int,
    n_heads: int,
    n_kv_heads: int,
    head_size: int,
    batch: int,
) -> tuple[int, int]:
    """What one rank sends in one layer -> (bytes of the forward, bytes of the backward)."""
    raise NotImplementedError("write bytes_sent here")
