"""2 x sequences x tokens x storing layers x key/value heads x head size x bytes per number.

The traps are in the config. Key/value heads count, not query heads: for Llama-3-8B that is a
factor of 4. `head_dim` wins over the division, since some models have heads that are wider or
narrower than width / heads. `x or y` treats a missing key and a null alike. With shared layers only
the distinct sources store anything.
"""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def kv_cache_bytes(config: dict, n_sequences: int, n_tokens: int) -> int:
    """A config.json as a dict, and how much text to hold -> bytes."""
    n_heads = config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_size = config.get("head_dim") or config["hidden_size"] // n_heads
    n_bytes = BYTES[config.get("dtype") or config.get("torch_dtype") or "float32"]
    n_stored = len(set(config.get("kv_source") or range(config["num_hidden_layers"])))
    return 2 * n_sequences * n_tokens * n_stored * n_kv_heads * head_size * n_bytes
