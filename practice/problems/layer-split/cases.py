"""Cases of the layer split; the oracle looks through every even split for the one of the rule."""

import random
from itertools import accumulate, pairwise, product

from kvpipe_practice.case import Case


def oracle(n_layers: int, n_stages: int, engine: str, partition: list[int] | None) -> list:
    """Of all splits into stages of two sizes, the one with its extra layers furthest back.

    In vLLM, only among those in which the last stage is a small one.
    """
    if partition is None:
        small = n_layers // n_stages
        partition = min(
            sizes
            for sizes in product((small, small + 1), repeat=n_stages)
            if sum(sizes) == n_layers and (engine == "sglang" or sizes[-1] == small)
        )
    return list(pairwise([0, *accumulate(partition)]))


def cases(seed: int):
    draw = random.Random(seed)

    def case(
        name: str, tests: str, n_layers, n_stages, engine, partition=None, sizes=None, **options
    ):
        inputs = {
            "n_layers": n_layers,
            "n_stages": n_stages,
            "engine": engine,
            "partition": partition,
        }
        expected = oracle(*inputs.values())
        found = [end - start for start, end in expected]
        assert sizes is None or sizes == found, (name, found)
        return Case(name, tests, inputs, expected, **options)

    yield case("example", "30 layers, 4 stages, vLLM", 30, 4, "vllm", None, [7, 8, 8, 7])
    yield case("example-sglang", "30 layers, 4 stages, SGLang", 30, 4, "sglang", None, [7, 7, 8, 8])
    yield case(
        "one-extra",
        "a single extra layer goes to the stage before vLLM's last",
        61,
        4,
        "vllm",
        None,
        [15, 15, 16, 15],
    )
    yield case(
        "first-stage-too",
        "vLLM's first stage takes one when all others but the last have theirs",
        35,
        4,
        "vllm",
        None,
        [9, 9, 9, 8],
    )
    yield case(
        "all-but-first", "SGLang's first stage is the last to get one", 35, 4, "sglang", None
    )
    yield case("no-remainder", "no layer is left over", 32, 4, "vllm", None, [8, 8, 8, 8])
    yield case(
        "two-stages", "two stages and an odd number of layers", 25, 2, "vllm", None, [13, 12]
    )
    yield case("one-stage", "one stage takes everything", 28, 1, "sglang", None, [28])
    yield case(
        "fewer-layers",
        "fewer layers than stages leave vLLM's first and last stage empty",
        3,
        5,
        "vllm",
        None,
        [0, 1, 1, 1, 0],
    )
    yield case(
        "fewer-layers-sglang",
        "fewer layers than stages leave SGLang's first stages empty",
        3,
        5,
        "sglang",
        None,
        [0, 0, 1, 1, 1],
    )
    yield case(
        "partition",
        "the user's partition wins, whatever it is",
        30,
        4,
        "sglang",
        [10, 9, 9, 2],
        [10, 9, 9, 2],
    )
    for i in range(5):
        hidden = i > 2
        n_stages = draw.randint(5, 11)
        extra = draw.randint(2, n_stages - 2)
        yield case(
            f"random-hidden-{i - 2}" if hidden else f"random-{i + 1}",
            "other random sizes" if hidden else "random sizes with layers left over",
            n_stages * draw.randint(3, 9) + extra,
            n_stages,
            ("vllm", "sglang")[i % 2],
            hidden=hidden,
        )
