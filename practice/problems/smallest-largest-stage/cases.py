"""Cases of the smallest largest stage; the oracle is brute force, or a search over the limit."""

import random
from itertools import accumulate, combinations, pairwise

from kvpipe_practice.case import Case

NAMES = ("layers", "savings", "sizes", "extras", "budget")
EXAMPLE = ([5, 5, 4, 4, 4, 4], [2, 2, 1, 2, 1, 1], [2, 2, 2], [0, 0, 3])


def load(layers, savings, stage, extra, shared) -> int:
    return extra + sum(layers[i] - savings[i] * (i in shared) for i in stage)


def brute_force(layers, savings, sizes, extras, budget) -> tuple[int, int]:
    """All sets of convertible layers, the small ones first."""
    stages = [range(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]
    able = [i for i in range(1, len(layers)) if savings[i]]
    found = []
    for n in range(min(budget, len(able)) + 1):
        for shared in combinations(able, n):
            pairs = zip(stages, extras, strict=True)
            loads = [load(layers, savings, stage, extra, shared) for stage, extra in pairs]
            found.append((max(loads), n))
    return min(found)


def by_limits(layers, savings, sizes, extras, budget) -> tuple[int, int]:
    """Bisect the limit: how many conversions does each stage need to stay within it?"""
    stages = [range(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]

    def needed(limit: int) -> int:
        total = 0
        for stage, extra in zip(stages, extras, strict=True):
            gains = sorted((savings[i] for i in stage if i), reverse=True)
            over = load(layers, savings, stage, extra, ()) - limit
            for gain in gains:
                if over > 0 and gain:
                    over, total = over - gain, total + 1
            if over > 0:
                return 10**9
        return total

    low, high = 0, sum(layers) + sum(extras)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if needed(middle) <= budget else (middle + 1, high)
    return low, needed(low)


def cases(seed: int):
    draw = random.Random(seed)

    def case(name, tests, *inputs, said=None, oracle=brute_force, **options):
        expected = oracle(*inputs)
        assert said in (None, expected), (name, expected)
        return Case(name, tests, dict(zip(NAMES, inputs, strict=True)), expected, **options)

    def drawn(n_stages: int, longest: int, budget: int) -> tuple:
        sizes = [draw.randint(1, longest) for _ in range(n_stages)]
        n = sum(sizes)
        savings = [draw.choice((0, 1, 1, 2, 3)) for _ in range(n)]
        extras = [draw.randint(0, 4) for _ in sizes[1:]] + [draw.randint(3, 9)]
        return [draw.randint(4, 9) for _ in range(n)], savings, sizes, extras, budget

    yield case("example", "two conversions", *EXAMPLE, 2, said=(10, 1))
    yield case("three", "three conversions", *EXAMPLE, 3, said=(9, 3))
    yield case("no-budget", "nothing may be converted", *EXAMPLE, 0, said=(11, 0))
    yield case("wasted", "a conversion that gains nothing is not counted",
               [4] * 4, [1] * 4, [2, 2], [0, 0], 1, said=(8, 0))  # fmt: skip
    yield case("layer-0", "layer 0 has nothing to borrow from",
               [9, 1, 3], [5, 0, 1], [2, 1], [0, 0], 2, said=(10, 0))  # fmt: skip
    yield case("largest-saving", "of one stage the largest saving first",
               [3, 6, 6, 3, 3], [0, 4, 1, 0, 0], [1, 2, 2], [0, 0, 0], 1, said=(8, 1))  # fmt: skip
    yield case("exhausted", "the largest stage has no layer left",
               [3, 3, 3, 3], [1, 1, 1, 1], [2, 2], [0, 9], 4, said=(13, 2))  # fmt: skip
    for i in range(7):
        hidden = i > 4
        yield case(
            f"random-hidden-{i - 4}" if hidden else f"random-{i + 1}",
            "random layers and stages",
            *drawn(draw.randint(2, 4), 4, draw.randint(2, 5)),
            hidden=hidden,
        )
    yield case("large", "a thousand layers", *drawn(64, 28, 250), oracle=by_limits)
