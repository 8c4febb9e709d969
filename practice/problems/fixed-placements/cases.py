"""Cases of the placements; the oracle seeks the nearest layer, and takes from the ends in turn."""

import random
from fractions import Fraction

from kvpipe_practice.case import Case


def oracle(n_layers: int, budget: int) -> dict:
    """Of all distances the one nearest to each point, the even one of two; ends one by one."""
    half = list(range(n_layers))[n_layers // 2 :]
    uniform, bipolar = [], []
    for i in range(budget):
        point = Fraction(i * (len(half) - 1), budget - 1) if budget > 1 else len(half) - 1
        nearest = min(range(len(half)), key=lambda x, p=point: (abs(x - p), x % 2))
        uniform.append(half[nearest])
    rest = list(half)
    for i in range(budget):
        bipolar.append(rest.pop(-1 if i % 2 == 0 else 0))
    return {"uniform": uniform, "bipolar": sorted(bipolar)}


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, n_layers: int, budget: int, said=None, **options):
        expected = oracle(n_layers, budget)
        assert said in (None, expected["uniform"]), (name, expected)
        assert all(len(set(layers)) == budget for layers in expected.values()), (name, expected)
        return Case(name, tests, {"n_layers": n_layers, "budget": budget}, expected, **options)

    yield case("example", "32 layers, 4 conversions", 32, 4, [16, 21, 26, 31])
    yield case("odd-budget", "an odd conversion goes to the end", 16, 3, [8, 12, 15])
    yield case("one", "a single conversion is the last layer", 12, 1, [11])
    yield case("two", "two conversions are the ends of the second half", 10, 2, [5, 9])
    yield case("odd-layers", "of 9 layers the second half has 5", 9, 3, [4, 6, 8])
    yield case(
        "rounded", "points between layers go to the nearest one", 30, 6, [15, 18, 21, 23, 26, 29]
    )
    yield case("half-way", "half way to the even distance, not the even layer", 20, 3, [10, 14, 19])
    yield case("half-way-odd", "the same where the second half begins at 13", 26, 9)
    yield case("all", "the whole second half", 14, 7, list(range(7, 14)))
    yield case("all-odd", "the whole second half of an odd number of layers", 7, 4, [3, 4, 5, 6])
    yield case("smallest", "two layers", 2, 1, [1])
    yield case("many", "126 layers", 126, 40)
    for i in range(6):
        hidden = i > 2
        n_layers = draw.randint(40, 99)
        yield case(
            f"random-hidden-{i - 2}" if hidden else f"random-{i + 1}",
            "other random numbers" if hidden else "random numbers",
            n_layers,
            draw.randint(5, n_layers // 2 - 1),
            hidden=hidden,
        )
