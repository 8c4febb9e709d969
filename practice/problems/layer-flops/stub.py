"""FLOPs of a layer: what it computes, and what sharing keys and values would save."""


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
    raise NotImplementedError("write layer_flops here")
