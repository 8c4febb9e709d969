"""Keys alone: your saving is that of the keys; values are saved too.

case: llama2-7b
kind: value
"""


def head_budget(config: dict, n_stages: int, same_stage: bool) -> tuple[float, int | None, float]:
    H = config["num_attention_heads"]
    D = config.get("head_dim") or config["hidden_size"] // H
    kv_width = (config.get("num_key_value_heads") or H) * D
    conversions = config["vocab_size"] / kv_width
    available = config["num_hidden_layers"] // n_stages
    if same_stage or n_stages == 1:
        available -= 1
    budget = round(conversions)
    return conversions, budget if budget <= available else None, min(1.0, available / conversions)
