"""A list of layer costs, cut by the sizes of the stages; the head goes on top of the last stage.

Sharing lowers the stage on which the layer lies, and no other: which layers are converted decides
which stage gets faster. Where the head is tied makes no difference, since sharing a tensor saves
memory and no work. For LLaMA2-7B at 8,192 tokens the head weighs 0.56 layers; for a model with a
vocabulary four times as large and grouped queries it weighs more layers than sharing can remove.
"""


def stage_loads(config: dict, sizes: list[int], n_tokens: int, shared: list[int]) -> list[int]:
    """Model, layers per stage, tokens, shared layers -> forward FLOPs of each stage."""
    T, C, H = n_tokens, config["hidden_size"], config["num_attention_heads"]
    K = config.get("num_key_value_heads") or H
    D = config.get("head_dim") or C // H
    own = 4 * T * C * H * D + 2 * T * T * H * D + 6 * T * C * config["intermediate_size"]
    key_and_value = 4 * T * C * K * D
    loads, start = [], 0
    for size in sizes:
        computing = sum(layer not in shared for layer in range(start, start + size))
        loads.append(size * own + computing * key_and_value)
        start += size
    loads[-1] += 2 * T * C * config["vocab_size"]
    return loads
