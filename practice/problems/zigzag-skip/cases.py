"""Cases of what zigzag can skip; the oracle looks at every pair, or scales up one that did."""

import random

from kvpipe_practice.case import Case


def dealt(n_tokens: int, n_ranks: int) -> list[list[int]]:
    """The tokens of each rank."""
    lengths = [len(range(b, n_tokens, 2 * n_ranks)) for b in range(2 * n_ranks)]
    tokens: list[list[int]] = [[] for _ in range(n_ranks)]
    for block in range(2 * n_ranks):
        start = sum(lengths[:block])
        owner = min(block, 2 * n_ranks - 1 - block)
        tokens[owner].extend(range(start, start + lengths[block]))
    return tokens


def box(queries: list[int], keys: list[int]) -> tuple[int, int, int, int, bool]:
    """The smallest rectangle around all visible pairs, and whether it is full or a triangle."""
    seen = {(i, j) for i, q in enumerate(queries) for j, k in enumerate(keys) if k <= q}
    rows, columns = {i for i, _ in seen}, {j for _, j in seen}
    top, left = min(rows), min(columns)
    bottom, right = max(rows) + 1, max(columns) + 1
    full = {(i, j) for i in range(top, bottom) for j in range(left, right)}
    triangle = {(i, j) for i, j in full if j - left <= i - top}
    assert seen in (full, triangle), (queries, keys)
    return top, bottom, left, right, seen != full


def oracle(n_tokens: int, n_ranks: int, rank: int) -> list[tuple]:
    tokens = dealt(n_tokens, n_ranks)
    return [box(tokens[rank], tokens[(rank + n_ranks - s) % n_ranks]) for s in range(n_ranks)]


def large(scale: int, n_ranks: int, rank: int) -> list[tuple]:
    """2 P * scale tokens: all blocks have `scale`, so the answer for blocks of 2 grows with it."""
    calls = oracle(4 * n_ranks, n_ranks, rank)
    return [(*(n // 2 * scale for n in call[:4]), call[4]) for call in calls]


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, n_tokens: int, n_ranks: int, rank: int, **options) -> Case:
        inputs = {"n_tokens": n_tokens, "n_ranks": n_ranks, "rank": rank}
        return Case(name, tests, inputs, oracle(n_tokens, n_ranks, rank), **options)

    yield case("example", "the example of the statement", 14, 3, 1)
    yield case("first-rank", "rank 0: the keys of all others come later", 24, 3, 0)
    yield case("last-rank", "the last rank: the keys of all others come earlier", 24, 3, 2)
    yield case("one-rank", "one rank: a causal call on everything", 7, 1, 0)
    yield case("smallest", "one token in every block", 8, 4, 2)
    yield case("uneven-queries", "a rank whose two blocks differ in length", 19, 3, 0)
    yield case("uneven-keys", "keys from ranks whose blocks differ in length", 19, 3, 2)
    yield case("nearly-even", "all blocks but the last are longer", 23, 4, 3)
    inputs = {"n_tokens": 10**12, "n_ranks": 250, "rank": 100}
    expected = large(10**12 // 500, 250, 100)
    yield Case("long", "a million million tokens on 250 ranks", inputs, expected)
    for i in range(4):
        n_ranks = draw.randint(3, 7)
        n_tokens = 2 * n_ranks * draw.randint(2, 5) + draw.randint(1, 2 * n_ranks - 1)
        yield case(
            f"random-{i + 1}" if i < 2 else f"random-hidden-{i - 1}",
            "any length, number of ranks and rank",
            n_tokens,
            n_ranks,
            draw.randrange(n_ranks),
            hidden=i > 1,
        )
