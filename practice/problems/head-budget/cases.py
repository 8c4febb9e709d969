"""Cases of the head budget; the oracle removes layer after layer until the head is gone."""

import random
from fractions import Fraction

from kvpipe_practice.case import Case, Tolerance

TOLERANCE = Tolerance(1e-9, why="one or two divisions of whole numbers")
LLAMA2_7B = {
    "hidden_size": 4096,
    "vocab_size": 32_000,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
LLAMA3_8B = LLAMA2_7B | {"vocab_size": 128_256, "num_key_value_heads": 8}


def oracle(config: dict, n_stages: int, same_stage: bool) -> tuple:
    """FLOPs of one token, in exact fractions."""
    C, H = config["hidden_size"], config["num_attention_heads"]
    D = config.get("head_dim") or C // H
    saving = Fraction(4 * C * (config.get("num_key_value_heads") or H) * D)
    head = Fraction(2 * C * config["vocab_size"])
    first = config["num_hidden_layers"] // n_stages * (n_stages - 1)
    with_source = [
        layer
        for layer in range(first, config["num_hidden_layers"])
        if layer > (first if same_stage else 0)
    ]
    rest = [abs(head - n * saving) for n in range(int(head / saving) + 2)]
    assert rest.count(min(rest)) == 1
    nearest = rest.index(min(rest))
    gone = min(head, len(with_source) * saving)
    budget = nearest if nearest <= len(with_source) else None
    return float(head / saving), budget, float(gone / head)


def cases(seed: int):
    draw = random.Random(seed)

    def case(name, tests, config, n_stages, same_stage, said=None, **options):
        inputs = {"config": config, "n_stages": n_stages, "same_stage": same_stage}
        expected = oracle(*inputs.values())
        assert said in (None, expected), (name, expected)
        return Case(name, tests, inputs, expected, tolerance=TOLERANCE, **options)

    yield case("llama2-7b", "LLaMA2-7B, 8 stages", LLAMA2_7B, 8, False, (3.90625, 4, 1.0))
    yield case("same-stage", "a source must be at hand", LLAMA2_7B, 8, True, (3.90625, None, 0.768))
    yield case("llama3-8b", "LLaMA3-8B: out of reach", LLAMA3_8B, 8, False)
    yield case("one-stage", "layer 0", LLAMA2_7B | {"vocab_size": 32 * 8192}, 1, False)
    yield case("two-stages", "the budget does not depend on the stages", LLAMA2_7B, 2, True)
    yield case(
        "keys-missing",
        "without num_key_value_heads every query head has its own",
        {name: value for name, value in LLAMA2_7B.items() if name != "num_key_value_heads"},
        4,
        False,
    )
    yield case("head-dim", "head_dim given", LLAMA3_8B | {"head_dim": 256}, 2, False)
    yield case("rounds-up", "nearest, not next", LLAMA2_7B | {"vocab_size": 29_000}, 8, False)
    yield case("rounds-down", "nearest, not next", LLAMA2_7B | {"vocab_size": 27_000}, 8, False)
    yield case("rounds-to-none", "half a layer", LLAMA2_7B | {"vocab_size": 4000}, 8, True)
    for i in range(6):
        hidden, kv_heads, P = i > 3, draw.randint(2, 9), draw.randint(2, 6)
        H, D = kv_heads * draw.randint(2, 4), draw.choice((40, 56, 72))
        per_layer = 2 * kv_heads * D
        vocab = per_layer * draw.randint(0, 9) + draw.randint(1, per_layer // 2 - 1)
        config = {
            "hidden_size": H * draw.choice((24, 64)),
            "vocab_size": vocab,
            "num_hidden_layers": P * draw.randint(3, 8),
            "num_attention_heads": H,
            "num_key_value_heads": kv_heads,
            "head_dim": D,
        }
        name = f"random-hidden-{i - 3}" if hidden else f"random-{i + 1}"
        yield case(name, "random sizes", config, P, draw.random() < 0.5, hidden=hidden)
