"""Cases of parameters and FLOPs: published models, and an oracle that walks the list of tensors."""

import math
import random

from kvpipe_practice.case import Case

TINY = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 5,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}


def published(family, V, C, F, L, H, K, **more) -> dict:
    """The keys that matter of a published config.json."""
    return {
        "model_type": family,
        "vocab_size": V,
        "hidden_size": C,
        "intermediate_size": F,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "num_key_value_heads": K,
        **more,
    }


def tensors(config: dict) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a checkpoint, one by one."""
    C, F = config["hidden_size"], config["intermediate_size"]
    D = config.get("head_dim") or C // config["num_attention_heads"]
    queries = config["num_attention_heads"] * D
    keys = (config.get("num_key_value_heads") or config["num_attention_heads"]) * D
    layer = [("norm", (C,)), ("q", (queries, C)), ("k", (keys, C)), ("v", (keys, C))]
    layer += [("o", (C, queries)), ("norm", (C,)), ("gate", (F, C)), ("up", (F, C))]
    layer += [("down", (C, F))]
    if config["model_type"] == "qwen2":
        layer += [("q bias", (queries,)), ("k bias", (keys,)), ("v bias", (keys,))]
    if config["model_type"] == "qwen3":
        layer += [("q norm", (D,)), ("k norm", (D,))]
    once = [("embedding", (config["vocab_size"], C)), ("norm", (C,))]
    if not config.get("tie_word_embeddings"):
        once += [("head", (config["vocab_size"], C))]
    return once + layer * config["num_hidden_layers"]


def oracle(config: dict, context: int) -> dict:
    """Every tensor counted; every product of a matrix or of a head counted."""
    flops = 2 * config["vocab_size"] * config["hidden_size"]
    for name, shape in tensors(config):
        if len(shape) == 2 and name not in ("embedding", "head"):
            flops += 2 * math.prod(shape)
        if name == "q":
            scores = mixing = 2 * shape[0]
            flops += (scores + mixing) * context
    total = sum(math.prod(shape) for _, shape in tensors(config))
    return {"parameters": total, "flops_per_token": flops}


def random_config(draw: random.Random) -> dict:
    """A family and sizes drawn at random; what may be left out sometimes is."""
    kv_heads, group = draw.randint(2, 4), draw.randint(2, 3)
    heads = kv_heads * group
    config = published(
        draw.choice(("llama", "mistral", "qwen2", "qwen3")),
        draw.randint(100, 199),
        heads * draw.choice((4, 6, 8)),
        draw.randint(60, 99),
        draw.randint(2, 5),
        heads,
        draw.choice((kv_heads, kv_heads, None)),
        max_position_embeddings=draw.randint(1000, 2000),
    )
    if draw.random() < 0.6:
        config["head_dim"] = draw.choice((10, 12, None))
    if draw.random() < 0.6:
        config["tie_word_embeddings"] = draw.choice((True, False))
    return config


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, config: dict, context: int, parameters: int, **options):
        expected = oracle(config, context)
        assert expected["parameters"] == parameters, f"{name}: {expected}"
        return Case(name, tests, {"config": config, "context": context}, expected, **options)

    yield case("example", "the example of the statement", TINY, 7, 1072)
    yield case(
        "llama-3-8b",
        "Llama-3-8B has 8,030,261,248 parameters",
        published("llama", 128_256, 4096, 14_336, 32, 32, 8),
        8192,
        8_030_261_248,
    )
    yield case(
        "no-groups",
        "without num_key_value_heads every query head has its own: LLaMA-7B, 6,738,415,616",
        {
            "model_type": "llama",
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
        2048,
        6_738_415_616,
    )
    yield case(
        "tied",
        "tied embeddings are one tensor, but the head still computes: SmolLM2-135M, 134,515,008",
        published("llama", 49_152, 576, 1536, 30, 9, 3, tie_word_embeddings=True),
        512,
        134_515_008,
    )
    yield case(
        "qwen2-biases",
        "qwen2 has biases on queries, keys and values: Qwen2.5-7B, 7,615,616,512",
        published("qwen2", 152_064, 3584, 18_944, 28, 28, 4, tie_word_embeddings=False),
        4096,
        7_615_616_512,
    )
    yield case(
        "head-size-given",
        "head_dim need not be width / heads: Mistral-Nemo, 12,247,782,400",
        published("mistral", 131_072, 5120, 14_336, 40, 32, 8, head_dim=128),
        1024,
        12_247_782_400,
    )
    yield case(
        "qwen3-norms",
        "qwen3 has a norm for queries and one for keys: Qwen3-0.6B, 596,049,920",
        published("qwen3", 151_936, 1024, 3072, 28, 16, 8, head_dim=128, tie_word_embeddings=True),
        2048,
        596_049_920,
    )
    yield case(
        "null-keys",
        "a key that is None counts as missing",
        published("llama", 11, 4, 3, 1, 2, None, head_dim=None, tie_word_embeddings=None),
        3,
        200,
    )
    for i in range(4):
        inputs = {"config": random_config(draw), "context": draw.randint(20, 50)}
        hidden = i == 3
        name = "random-hidden" if hidden else f"random-{i + 1}"
        tests = "another random config" if hidden else "a random config, all sizes different"
        yield Case(name, tests, inputs, oracle(*inputs.values()), hidden=hidden)
