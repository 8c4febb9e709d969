"""Matrices first, since both numbers need them; then what only one of the two needs.

The head is a matrix product whether or not it is tied, so it always costs FLOPs, but it adds
parameters only when it is not tied. The embedding is the reverse: parameters, but no FLOPs. The
output projection is C x HD, not C x C: the two differ where `head_dim` is given. Of the other
tensors, all vectors, the biases of qwen2 and the head norms of qwen3 appear in no key of the
config; one has to know the family.
"""


def parameters_and_flops(config: dict, context: int) -> dict:
    """A config.json as a dict -> {"parameters": int, "flops_per_token": int}."""
    C, L, H = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    K = config.get("num_key_value_heads") or H
    D = config.get("head_dim") or C // H
    head = config["vocab_size"] * C
    matrices = L * (2 * H * D * C + 2 * K * D * C + 3 * config["intermediate_size"] * C)
    vectors = L * 2 * C + C
    if config["model_type"] == "qwen2":
        vectors += L * (H + 2 * K) * D
    if config["model_type"] == "qwen3":
        vectors += L * 2 * D
    return {
        "parameters": matrices + vectors + head * (1 if config.get("tie_word_embeddings") else 2),
        "flops_per_token": 2 * (matrices + head) + 4 * L * H * D * context,
    }
