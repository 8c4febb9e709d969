"""Cases of Algorithm 1; the oracle asks of each step whether the published rules allow it."""

import random
from fractions import Fraction

from kvpipe_practice.case import Case

NAMES = ("costs", "savings", "sizes", "auxiliary", "budget", "epsilon", "alpha")
ROUNDING = Fraction(1, 10**9)


def stage_table(sizes: list) -> list[int]:
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]


def next_layer(converted: list, exact: bool, inputs: dict) -> int | None:
    """The layer that is converted next in this state, None to stop; in exact fractions."""
    costs, savings, sizes, auxiliary, budget, epsilon, alpha = inputs.values()
    stage_of, P, L = stage_table(sizes), len(sizes), len(costs)
    loads = [Fraction(extra) for extra in auxiliary]
    for layer, stage in enumerate(stage_of):
        loads[stage] += costs[layer] - (savings[layer] if layer in converted else 0)
    ratios = [load * P / sum(loads) - 1 for load in loads]
    eps, guard = Fraction(str(epsilon)), Fraction(str(alpha))
    if not exact:
        assert all(abs(ratio - eps) > ROUNDING for ratio in ratios), "rounding could decide"
    if max(ratios) <= eps or len(converted) == budget:
        return None
    target = P - 1
    if ratios[-1] <= eps:
        target = min(stage for stage in range(P) if ratios[stage] == max(ratios))
    for layer in reversed(range(L)):
        deep = layer + 1 >= guard * L
        if stage_of[layer] == target and deep and layer not in converted:
            return layer
    return None


def oracle(inputs: dict, exact: bool) -> list[int]:
    """Ask for the next layer until there is none."""
    converted = []
    while (layer := next_layer(converted, exact, inputs)) is not None:
        converted.append(layer)
    return converted


def random_inputs(draw: random.Random) -> tuple:
    """Uneven layers and stages, a module on the last stage or on any; drawn until it is a case.

    A case converts something, and rounding decides nothing in it.
    """
    while True:
        sizes = [draw.randint(2, 5) for _ in range(draw.randint(3, 6))]
        costs = [draw.randint(30, 60) for _ in range(sum(sizes))]
        savings = [draw.randint(4, 12) for _ in costs]
        auxiliary = [0] * len(sizes)
        auxiliary[draw.choice((-1, -1, 0, 1))] = draw.randint(20, 60)
        rest = (draw.randint(3, 12), draw.choice((0.02, 0.05, 0.1)), draw.choice((0.0, 0.0, 0.35)))
        values = (costs, savings, sizes, auxiliary, *rest)
        try:
            if len(oracle(dict(zip(NAMES, values, strict=True)), False)) > 1:
                return values
        except AssertionError:
            continue


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, *values, said=None, exact=False, **options):
        inputs = dict(zip(NAMES, values, strict=True))
        expected = oracle(inputs, exact)
        assert said in (None, expected), (name, expected)
        return Case(name, tests, inputs, expected, **options)

    llama2 = ([36_864] * 32, [5243] * 32, [4] * 8, [0] * 7 + [20_480])
    uneven = ([10, 10, 10, 10, 7, 7, 7], [1, 1, 1, 1, 2, 2, 2], [2, 2, 3], [0, 1, 3])
    equal = ([10] * 8, [2] * 8, [2] * 4, [0] * 4)
    yield case("example", "the example of the statement", *uneven, 5, 0.01, 0.0, said=[6, 5, 3])
    yield case("tolerance", "a wider tolerance stops earlier", *uneven, 5, 0.05, 0.0, said=[6])
    yield case("budget", "the budget stops it", *uneven, 2, 0.01, 0.0, said=[6, 5])
    yield case("balanced", "equal stages: nothing to do", *equal, 4, 0.0, 0.0, said=[], exact=True)
    yield case(
        "exactly-at-tolerance",
        "FIR is exactly 1 + epsilon, so it stops",
        *([3, 2, 2, 2, 2, 3], [1] * 6, [2, 1, 2, 1], [1, 0, 0, 1]),
        *(5, 0.5, 0.0),
        said=[],
        exact=True,
    )
    yield case(
        "last-stage-first",
        "the last stage is above the tolerance, so it comes before the largest",
        *([10, 10, 4, 4, 6, 5, 5], [1] * 7, [2, 2, 3], [0, 0, 0]),
        *(5, 0.02, 0.0),
        said=[6, 5, 1, 4, 0],
    )
    yield case(
        "ties",
        "of equally large stages the first is relieved",
        *([9, 9, 9, 9, 5, 5], [2] * 6, [2, 2, 2], [0, 0, 3]),
        *(3, 0.01, 0.0),
        said=[1, 3, 0],
    )
    yield case(
        "exhausted",
        "the last stage has no layer left, so it stops although others could be relieved",
        *([10] * 6, [1] * 6, [2, 3, 1], [0, 0, 25]),
        *(6, 0.05, 0.0),
        said=[5],
    )
    yield case(
        "depth-guard",
        "layers above the depth guard are left alone; a layer exactly at it is not",
        *([10] * 8, [2] * 8, [6, 2], [20, 0]),
        *(7, 0.01, 0.5),
        said=[5, 4, 3],
        exact=True,
    )
    yield case(
        "layer-0",
        "layer 0 may be converted, though it has nothing to read from",
        *([10] * 5, [2] * 5, [2, 1, 2], [9, 7, 0]),
        *(9, 0.001, 0.0),
        said=[1, 0],
    )
    yield case(
        "llama2-7b-wide",
        "LLaMA2-7B on 8 stages at 8,192 tokens, tolerance 0.05: three layers",
        *(*llama2, 4, 0.05, 0.0),
        said=[31, 30, 29],
    )
    yield case(
        "llama2-7b",
        "the same with 0.02: four layers, the whole last stage",
        *(*llama2, 4, 0.02, 0.0),
        said=[31, 30, 29, 28],
    )
    yield case(
        "llama2-7b-tight",
        "with 0.0001 it goes on: the first of seven equal stages loses a layer, then it stops",
        *(*llama2, 6, 0.0001, 0.0),
        said=[31, 30, 29, 28, 3],
    )
    for i in range(8):
        hidden = i > 3
        yield case(
            f"random-hidden-{i - 3}" if hidden else f"random-{i + 1}",
            "another random model" if hidden else "a random model and partition",
            *random_inputs(draw),
            hidden=hidden,
        )
