"""Bytes: your saved cache is in bytes of two; it is asked in numbers.

case: example
kind: value
"""


def layer_flops(
    n_tokens: int,
    width: int,
    ffn_width: int,
    n_heads: int,
    n_kv_heads: int,
    head_size: int,
    causal: str,
) -> dict:
    T, C, F, H, K, D = n_tokens, width, ffn_width, n_heads, n_kv_heads, head_size
    query_and_output = 2 * T * (C * H * D + H * D * C)
    key_and_value = 2 * T * (2 * C * K * D)
    feed_forward = 2 * T * (3 * C * F)
    twice_the_pairs = {"half": T * T, "full": 2 * T * T, "exact": T * (T + 1)}[causal]
    attention = 2 * H * D * twice_the_pairs
    return {
        "flops": query_and_output + key_and_value + feed_forward + attention,
        "flops_saved": key_and_value,
        "cache_saved": 2 * 2 * K * D,
    }
