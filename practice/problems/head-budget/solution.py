"""The head over the saving: 2TCV / 4TCKD = V / (2KD). Tokens and width cancel.

So the budget depends on neither the length nor the number of stages; whether it is feasible does
depend on the stages. With D = C / H and r = H / K it is V r / (2 C). A large vocabulary and few KV
heads, as in LLaMA3-8B, need 63 conversions where the last of eight stages has four layers.
"""


def head_budget(config: dict, n_stages: int, same_stage: bool) -> tuple[float, int | None, float]:
    """Sizes, stages, where sources may lie -> (conversions, budget or None, part cancelled)."""
    H = config["num_attention_heads"]
    D = config.get("head_dim") or config["hidden_size"] // H
    kv_width = (config.get("num_key_value_heads") or H) * D
    conversions = config["vocab_size"] / (2 * kv_width)
    available = config["num_hidden_layers"] // n_stages
    if same_stage or n_stages == 1:
        available -= 1
    budget = round(conversions)
    return conversions, budget if budget <= available else None, min(1.0, available / conversions)
