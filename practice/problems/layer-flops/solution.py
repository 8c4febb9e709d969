"""Projections grow with T, attention with T squared, and sharing removes only projections.

With HD = C and r = H / K this is the form of the literature: 4C² + 4C²/r per token for the
projections, of which sharing saves 4C²/r, and 2C/r numbers in the cache. With grouped queries
(r > 1) there is less to save: 1/r of what full multi-head attention would save. The share of a
layer that can be saved falls with the length of the sequence, because attention grows and the
saving per token does not.
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
    """Sizes -> {"flops", "flops_saved", "cache_saved"}, forward, one sequence."""
    T, C, F, H, K, D = n_tokens, width, ffn_width, n_heads, n_kv_heads, head_size
    query_and_output = 2 * T * (C * H * D + H * D * C)
    key_and_value = 2 * T * (2 * C * K * D)
    feed_forward = 2 * T * (3 * C * F)
    twice_the_pairs = {"half": T * T, "full": 2 * T * T, "exact": T * (T + 1)}[causal]
    attention = 2 * H * D * twice_the_pairs
    return {
        "flops": query_and_output + key_and_value + feed_forward + attention,
        "flops_saved": key_and_value,
        "cache_saved": 2 * K * D,
    }
