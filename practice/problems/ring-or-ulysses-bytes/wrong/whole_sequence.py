"""Whole sequence: your blocks have S tokens; a rank's have S / P.

case: ring
kind: value
"""


def bytes_sent(
    method: str,
    n_ranks: int,
    n_tokens: int,
    n_heads: int,
    n_kv_heads: int,
    head_size: int,
    batch: int,
) -> tuple[int, int]:
    kv = 2 * batch * n_tokens * n_kv_heads * head_size  # elements of a rank's block
    if method == "ring":
        forward = (n_ranks - 1) * kv * 2
        backward = forward + (n_ranks * kv * 4 if n_ranks > 1 else 0)
        return forward, backward
    q_and_out = 2 * batch * n_tokens * n_heads * head_size
    forward = (q_and_out + kv) * (n_ranks - 1) // n_ranks * 2
    return forward, forward
