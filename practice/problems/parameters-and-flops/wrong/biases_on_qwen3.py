"""Biases on qwen3: your parameters have them on queries, keys and values; only qwen2 has.

case: qwen3-norms
kind: value
"""


def parameters_and_flops(config: dict, context: int) -> dict:
    C, L, H = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    K = config.get("num_key_value_heads") or H
    D = config.get("head_dim") or C // H
    head = config["vocab_size"] * C
    matrices = L * (2 * H * D * C + 2 * K * D * C + 3 * config["intermediate_size"] * C)
    vectors = L * 2 * C + C
    if config["model_type"] in ("qwen2", "qwen3"):
        vectors += L * (H + 2 * K) * D
    if config["model_type"] == "qwen3":
        vectors += L * 2 * D
    return {
        "parameters": matrices + vectors + head * (1 if config.get("tie_word_embeddings") else 2),
        "flops_per_token": 2 * (matrices + head) + 4 * L * H * D * context,
    }
