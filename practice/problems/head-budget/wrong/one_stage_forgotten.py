"""One stage forgotten: your model of one stage converts layer 0, which has nothing to borrow from.

case: one-stage
kind: type
"""


def head_budget(config: dict, n_stages: int, same_stage: bool) -> tuple[float, int | None, float]:
    H = config["num_attention_heads"]
    D = config.get("head_dim") or config["hidden_size"] // H
    kv_width = (config.get("num_key_value_heads") or H) * D
    conversions = config["vocab_size"] / (2 * kv_width)
    available = config["num_hidden_layers"] // n_stages
    if same_stage:
        available -= 1
    budget = round(conversions)
    return conversions, budget if budget <= available else None, min(1.0, available / conversions)
