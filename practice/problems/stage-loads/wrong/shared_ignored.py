"""Sharing ignored: your loads are those without shared layers.

case: shared
kind: value
"""


def stage_loads(config: dict, sizes: list[int], n_tokens: int, shared: list[int]) -> list[int]:
    T, C, H = n_tokens, config["hidden_size"], config["num_attention_heads"]
    K = config.get("num_key_value_heads") or H
    D = config.get("head_dim") or C // H
    own = 4 * T * C * H * D + 2 * T * T * H * D + 6 * T * C * config["intermediate_size"]
    key_and_value = 4 * T * C * K * D
    loads = []
    for size in sizes:
        loads.append(size * (own + key_and_value))
    loads[-1] += 2 * T * C * config["vocab_size"]
    return loads
