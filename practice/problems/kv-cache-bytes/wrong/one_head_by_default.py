"""One head by default: a model without num_key_value_heads has as many as query heads.

case: no-groups
kind: value
"""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def kv_cache_bytes(config: dict, n_sequences: int, n_tokens: int) -> int:
    n_heads = config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads") or 1
    head_size = config.get("head_dim") or config["hidden_size"] // n_heads
    n_bytes = BYTES[config.get("dtype") or config.get("torch_dtype") or "float32"]
    n_stored = len(set(config.get("kv_source") or range(config["num_hidden_layers"])))
    return 2 * n_sequences * n_tokens * n_stored * n_kv_heads * head_size * n_bytes
