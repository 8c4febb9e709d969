"""Cases of FIR; the oracle deals every cost out to an owner and divides exact fractions."""

import random
from fractions import Fraction

from kvpipe_practice.case import Case, Tolerance

TOLERANCE = Tolerance(
    1e-9, why="a few sums and divisions in float64, which keeps 16 digits; no step loses more"
)
LLAMA2_7B = (3_865_470_566_400.0, 2_147_483_648_000.0)  # a layer and the head at 8,192 tokens


def oracle(layer_costs: list, stages: list, auxiliary: list) -> float:
    """One list of (owner, cost) for everything; the share of the largest owner, times P."""
    owner = {layer: i for i, layers in enumerate(stages) for layer in layers}
    parts = [(owner[layer], Fraction(cost)) for layer, cost in enumerate(layer_costs)]
    parts += [(stage, Fraction(cost)) for stage, cost in auxiliary]
    total = sum(cost for _, cost in parts)
    shares = [sum(cost for i, cost in parts if i == s) / total for s in range(len(stages))]
    return float(max(shares) * len(stages))


def in_order(*sizes: int) -> list[list[int]]:
    """Stages of so many layers, one after the other."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def random_inputs(draw: random.Random) -> tuple[list, list, list]:
    """Layers scattered over stages, one of them empty, modules on some."""
    n_stages = draw.randint(4, 7)
    n_layers = draw.randint(11, 23)
    stages = [[] for _ in range(n_stages)]
    idle = draw.randrange(n_stages)
    working = [i for i in range(n_stages) if i != idle]
    for layer in draw.sample(range(n_layers), n_layers):
        stages[draw.choice(working)].append(layer)
    heavy = draw.choice(working)
    auxiliary = [(stage, round(draw.uniform(1, 9), 2)) for stage in (heavy, heavy, idle)]
    return [round(draw.uniform(1, 5), 2) for _ in range(n_layers)], stages, auxiliary


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, layer_costs, stages, auxiliary, said=None, **options):
        inputs = {"layer_costs": layer_costs, "stages": stages, "auxiliary": auxiliary}
        expected = oracle(*inputs.values())
        assert said in (None, round(expected, 6)), (name, expected)
        return Case(name, tests, inputs, expected, **options)

    yield case(
        "example",
        "the example of the statement",
        [4.0, 4.0, 4.0, 4.0, 2.0],
        in_order(2, 2, 1),
        [(2, 9.0)],
        1.222222,
    )
    yield case("layers-only", "no auxiliary module", [1.0, 2.0, 3.0, 6.0], in_order(3, 1), [], 1.0)
    yield case(
        "first-stage",
        "an auxiliary module on the first stage",
        [2.0, 2.0, 2.0, 2.0],
        in_order(1, 1, 2),
        [(0, 3.0)],
        1.363636,
    )
    yield case(
        "two-modules",
        "two auxiliary modules on one stage, a third elsewhere",
        [3.0, 3.0, 3.0],
        in_order(1, 1, 1),
        [(2, 1.0), (0, 2.0), (2, 4.0)],
        1.5,
    )
    yield case(
        "interleaved",
        "a stage with two separate runs of layers",
        [1.0, 1.0, 7.0, 1.0, 1.0, 1.0, 5.0, 1.0],
        [[4, 0, 1, 5], [6, 7, 2, 3]],
        [],
        1.555556,
    )
    yield case(
        "empty-stage",
        "a stage with nothing to do counts in the mean",
        [2.0, 4.0, 3.0],
        [[0, 1], [], [2]],
        [],
        2.0,
    )
    yield case(
        "module-alone",
        "a stage that holds only the head",
        [2.0, 2.0, 2.0, 2.0],
        [[0, 1], [2, 3], []],
        [(2, 6.0)],
        1.285714,
    )
    yield case("one-stage", "one stage is always balanced", [5.0, 1.0], [[0, 1]], [(0, 3.0)], 1.0)
    yield case(
        "llama2-7b",
        "LLaMA2-7B on 8 stages at 8,192 tokens, the head on the last: 1.1195",
        [LLAMA2_7B[0]] * 32,
        in_order(*[4] * 8),
        [(7, LLAMA2_7B[1])],
        1.119454,
    )
    for i in range(4):
        hidden = i > 1
        yield case(
            f"random-hidden-{i - 1}" if hidden else f"random-{i + 1}",
            "another random partition" if hidden else "a random partition with modules",
            *random_inputs(draw),
            hidden=hidden,
        )
