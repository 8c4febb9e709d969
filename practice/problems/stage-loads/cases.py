"""Cases of stage loads; the oracle walks layer by layer and matrix by matrix."""

import random

from kvpipe_practice.case import Case

TINY = {
    "hidden_size": 8,
    "intermediate_size": 5,
    "vocab_size": 11,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}


def published(C: int, F: int, V: int, L: int, H: int, K: int | None, **more) -> dict:
    sizes = (C, F, V, L, H, K)
    return dict(zip(TINY, sizes, strict=True)) | more


def oracle(config: dict, sizes: list, n_tokens: int, shared: list) -> list[int]:
    """Every matrix of every layer, added to the load of the stage that has the layer."""
    C, H = config["hidden_size"], config["num_attention_heads"]
    D = config.get("head_dim") or C // H
    wide, narrow = H * D, (config.get("num_key_value_heads") or H) * D
    stage_of = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    assert len(stage_of) == config["num_hidden_layers"]
    loads = [0] * len(sizes)
    for layer, stage in enumerate(stage_of):
        matrices = [(C, wide), (wide, C)]
        matrices += [(C, narrow)] * 2 * (layer not in shared)
        matrices += [(C, config["intermediate_size"])] * 2 + [(config["intermediate_size"], C)]
        loads[stage] += sum(2 * n_tokens * rows * columns for rows, columns in matrices)
        loads[stage] += H * n_tokens**2 * 4 * D // 2
    loads[len(sizes) - 1] += 2 * n_tokens * C * config["vocab_size"]
    return loads


def random_inputs(draw: random.Random) -> tuple:
    """Uneven stages, layers of several of them shared, the whole last stage among them or not."""
    sizes = [draw.randint(2, 6) for _ in range(draw.randint(3, 6))]
    n_layers, kv_heads = sum(sizes), draw.randint(2, 4)
    heads = kv_heads * draw.randint(2, 3)
    config = published(
        heads * draw.choice((4, 6, 8)),
        draw.randint(60, 99),
        draw.randint(200, 499),
        n_layers,
        heads,
        draw.choice((kv_heads, kv_heads, None)),
        tie_word_embeddings=draw.choice((True, False)),
    )
    if draw.random() < 0.6:
        config["head_dim"] = draw.choice((10, 12, None))
    shared = draw.sample(range(1, n_layers), draw.randint(3, n_layers // 2 + 2))
    return config, sizes, draw.randint(20, 50), shared


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, config, sizes, n_tokens, shared, said=None, **options):
        inputs = {"config": config, "sizes": sizes, "n_tokens": n_tokens, "shared": shared}
        expected = oracle(*inputs.values())
        assert said in (None, expected), (name, expected)
        return Case(name, tests, inputs, expected, **options)

    llama2 = published(4096, 11_008, 32_000, 32, 32, 32)
    llama3 = published(4096, 14_336, 128_256, 32, 32, 8)
    yield case("example", "no layer shares", TINY, [2, 2, 1], 3, [], [3648, 3648, 2352])
    yield case("shared", "layers 4 and 2 share", TINY, [2, 2, 1], 3, [4, 2], [3648, 3456, 2160])
    yield case("uneven", "stages of different sizes", TINY, [1, 3, 1], 3, [3], [1824, 5280, 2352])
    yield case("one-stage", "one stage has the head too", TINY, [5], 3, [1], [9456])
    yield case(
        "tied",
        "a tied head computes as much",
        TINY | {"tie_word_embeddings": True},
        [2, 3],
        7,
        [2],
    )
    yield case(
        "keys-missing",
        "without num_key_value_heads every query head has its own",
        {name: value for name, value in TINY.items() if name != "num_key_value_heads"},
        [3, 2],
        4,
        [3, 4],
    )
    yield case(
        "head-dim", "head_dim need not be width / heads", TINY | {"head_dim": 3}, [2, 3], 5, [4]
    )
    yield case(
        "llama2-7b",
        "LLaMA2-7B on 8 stages at 8,192 tokens, the last four layers shared",
        *(llama2, [4] * 8, 8192, [28, 29, 30, 31]),
    )
    yield case(
        "llama3-8b",
        "LLaMA3-8B with fewer layers on the stage of the head",
        *(llama3, [5, 5, 4, 4, 4, 4, 4, 2], 8192, [30, 31]),
    )
    for i in range(5):
        hidden = i > 2
        yield case(
            f"random-hidden-{i - 2}" if hidden else f"random-{i + 1}",
            "another random model and partition" if hidden else "a random model and partition",
            *random_inputs(draw),
            hidden=hidden,
        )
