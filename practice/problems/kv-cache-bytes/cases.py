"""Cases of the KV-cache bytes: published models, and an oracle that adds up arrays one by one."""

import math
import random

from kvpipe_practice.case import Case

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "torch_dtype": "float16",
}
QWEN3_0_6B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
}
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def oracle(config: dict, n_sequences: int, n_tokens: int) -> int:
    """Every stored array, by its shape."""
    total = 0
    for layer in range(config["num_hidden_layers"]):
        source = config["kv_source"][layer] if config.get("kv_source") else layer
        if source != layer:
            continue
        heads, size = config.get("num_key_value_heads"), config.get("head_dim")
        if heads is None:
            heads = config["num_attention_heads"]
        if size is None:
            size = config["hidden_size"] // config["num_attention_heads"]
        kinds = [config.get("dtype"), config.get("torch_dtype"), "float32"]
        kind = next(name for name in kinds if name is not None)
        for _ in ("keys", "values"):
            shape = (n_sequences, heads, n_tokens, size)
            total += math.prod(shape) * (32 if kind == "float32" else 16) // 8
    return total


def random_config(draw: random.Random) -> dict:
    """Any of the ways in which a config may be written, in random sizes."""
    n_layers, kv_heads, group = draw.randint(3, 9), draw.randint(1, 4), draw.randint(2, 3)
    config = {
        "vocab_size": draw.randint(100, 999),
        "num_hidden_layers": n_layers,
        "num_attention_heads": kv_heads * group,
        "hidden_size": kv_heads * group * draw.choice((8, 10, 12)),
    }
    if draw.random() < 0.7:
        config["num_key_value_heads"] = draw.choice((kv_heads, kv_heads, None))
    if draw.random() < 0.7:
        config["head_dim"] = draw.choice((14, 16, None))
    if draw.random() < 0.8:
        kinds = ("float32", "float16", "bfloat16")
        config[draw.choice(("dtype", "torch_dtype"))] = draw.choice(kinds)
    if draw.random() < 0.6:
        sources = [0]
        for layer in range(1, n_layers):
            sources.append(layer if draw.random() < 0.5 else draw.choice(sources))
        config["kv_source"] = sources
    return config


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, config: dict, n_sequences: int, n_tokens: int, expected: int):
        inputs = {"config": config, "n_sequences": n_sequences, "n_tokens": n_tokens}
        return Case(name, tests, inputs, expected)

    yield case("example", "one token of Llama-3-8B takes 128 KiB", LLAMA_3_8B, 1, 1, 131_072)
    yield case(
        "whole-batch",
        "4 sequences of 8,192 tokens take 4 GiB",
        LLAMA_3_8B,
        4,
        8192,
        4 * 2**30,
    )
    yield case(
        "no-groups",
        "without num_key_value_heads every query head has its own: the first LLaMA-7B",
        LLAMA_7B,
        1,
        1,
        524_288,
    )
    yield case(
        "head-size-given",
        "head_dim is taken from the config where it is given: Qwen3-0.6B has 128, not 1024 / 16",
        QWEN3_0_6B,
        1,
        1,
        114_688,
    )
    yield case(
        "null-keys",
        "a key that is None counts as missing",
        {**LLAMA_7B, "num_key_value_heads": None, "head_dim": None},
        1,
        3,
        3 * 524_288,
    )
    yield case(
        "float32",
        "float32 takes 4 bytes per number: SmolLM2-135M on a laptop",
        {**SMOLLM2_135M, "torch_dtype": "float32"},
        1,
        1,
        46_080,
    )
    yield case(
        "newer-key",
        "newer files say dtype instead of torch_dtype",
        {**SMOLLM2_135M, "dtype": "bfloat16"},
        1,
        1,
        23_040,
    )
    yield case(
        "both-keys",
        "where both keys are there, dtype wins",
        {**SMOLLM2_135M, "torch_dtype": "float32", "dtype": "bfloat16"},
        1,
        1,
        23_040,
    )
    yield case(
        "no-dtype",
        "without a dtype the numbers are float32",
        SMOLLM2_135M,
        1,
        2,
        2 * 46_080,
    )
    yield case(
        "shared-layers",
        "a layer that reads another layer's keys and values stores nothing",
        {**SMOLLM2_135M, "num_hidden_layers": 4, "kv_source": [0, 1, 1, 3]},
        1,
        1,
        4_608,
    )
    yield case("empty", "an empty cache takes no bytes", LLAMA_3_8B, 2, 0, 0)
    for i in range(4):
        inputs = {
            "config": random_config(draw),
            "n_sequences": draw.randint(2, 5),
            "n_tokens": draw.randint(6, 50),
        }
        hidden = i == 3
        name = "random-hidden" if hidden else f"random-{i + 1}"
        tests = "another random config" if hidden else "a random config, all sizes different"
        yield Case(name, tests, inputs, oracle(*inputs.values()), hidden=hidden)
