"""Full scores: your scores count all T² pairs; the causal half is asked.

case: example
kind: value
"""


def stage_loads(config: dict, sizes: list[int], n_tokens: int, shared: list[int]) -> list[int]:
    T, C, H = n_tokens, config["hidden_size"], config["num_attention_heads"]
    K = config.get("num_key_value_heads") or H
    D = config.get("head_dim") or C // H
    own = 4 * T * C * H * D + 4 * T * T * H * D + 6 * T * C * config["intermediate_size"]
    key_and_value = 4 * T * C * K * D
    loads, start = [], 0
    for size in sizes:
        computing = sum(layer not in shared for layer in range(start, start + size))
        loads.append(size * own + computing * key_and_value)
        start += size
    loads[-1] += 2 * T * C * config["vocab_size"]
    return loads
