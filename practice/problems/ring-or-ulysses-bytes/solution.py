"""Elements of a block first, then how often each is sent, then bytes.

The ring sends keys and values alone, but P - 1 times; Ulysses sends queries and outputs too, and
all of it only once. Per rank the ring's forward stays about the same as P grows, (P - 1) / P of the
whole keys and values, while that of Ulysses falls like 1 / P. With few KV heads the ring sends
little, and Ulysses cannot use more ranks than there are KV heads without copies.
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
    """What one rank sends in one layer -> (bytes of the forward, bytes of the backward)."""
    kv = 2 * batch * n_tokens // n_ranks * n_kv_heads * head_size  # elements of a rank's block
    if method == "ring":
        forward = (n_ranks - 1) * kv * 2
        backward = forward + (n_ranks * kv * 4 if n_ranks > 1 else 0)
        return forward, backward
    q_and_out = 2 * batch * n_tokens // n_ranks * n_heads * head_size
    forward = (q_and_out + kv) * (n_ranks - 1) // n_ranks * 2
    return forward, forward
