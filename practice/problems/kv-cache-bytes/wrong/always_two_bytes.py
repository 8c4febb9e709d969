"""Two bytes always: your result equals the one for 16-bit numbers; look at the dtype.

case: float32
kind: value
"""


def kv_cache_bytes(config: dict, n_sequences: int, n_tokens: int) -> int:
    n_heads = config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_size = config.get("head_dim") or config["hidden_size"] // n_heads
    n_bytes = 2
    n_stored = len(set(config.get("kv_source") or range(config["num_hidden_layers"])))
    return 2 * n_sequences * n_tokens * n_stored * n_kv_heads * head_size * n_bytes
