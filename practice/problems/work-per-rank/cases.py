"""Cases of work per rank; the oracle marks keys on a line and counts what lies left of a query."""

import itertools
import random

from kvpipe_practice.case import Case


def oracle(tokens: list[list[int]]) -> list[list[int]]:
    """A running count over all positions, one for the keys of each rank."""
    P, last = len(tokens), max(itertools.chain([-1], *tokens))
    counts = []
    for mine in tokens:
        marks = [0] * (last + 1)
        for position in mine:
            if position != -1:
                marks[position] += 1
        counts.append(list(itertools.accumulate(marks)))
    return [
        [
            sum(counts[(rank + P - step) % P][q] for q in tokens[rank] if q != -1)
            for rank in range(P)
        ]
        for step in range(P)
    ]


def zigzag(n_ranks: int, chunk: int) -> list[list[int]]:
    starts = [(rank * chunk, (2 * n_ranks - 1 - rank) * chunk) for rank in range(n_ranks)]
    return [[a + i for a in pair for i in range(chunk)] for pair in starts]


def shuffled(draw: random.Random, n_ranks: int, n_tokens: int) -> list[list[int]]:
    """Tokens dealt at random, uneven, with gaps and padding, in no order."""
    positions = draw.sample(range(2 * n_tokens), n_tokens)
    cuts = sorted(draw.sample(range(1, n_tokens), n_ranks - 1))
    dealt = [positions[a:b] for a, b in zip([0, *cuts], [*cuts, n_tokens], strict=True)]
    for mine in dealt:
        mine += [-1] * draw.randint(0, 3)
        draw.shuffle(mine)
    return dealt


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, tokens, said=None, **options):
        expected = oracle(tokens)
        assert said in (None, expected), (name, expected)
        return Case(name, tests, {"tokens": tokens}, expected, **options)

    yield case("example", "tokens in order", [[0, 1, 2], [3, 4]], [[6, 3], [0, 6]])
    yield case("two-chunks", "an early and a late token each", [[0, 3], [1, 2]], [[3, 3], [2, 2]])
    yield case(
        "three-ranks",
        "which keys are there at step 1 of three ranks",
        [[0, 1], [2, 3], [4, 5]],
        [[3, 3, 3], [0, 4, 4], [0, 0, 4]],
    )
    yield case("one-rank", "one rank has one step", [[0, 1, 2, 3]], [[10]])
    yield case("padding", "padding is in no pair", [[-1, 0, 1], [2, -1, -1]], [[3, 1], [0, 2]])
    yield case("unsorted", "positions in no order", [[5, 0], [4, 2]], [[3, 3], [2, 2]])
    yield case("no-tokens", "a rank without tokens", [[3, 1], [], [2]])
    yield case(
        "contiguous",
        "64 tokens in order on 4 ranks",
        [list(range(16 * r, 16 * r + 16)) for r in range(4)],
    )
    yield case("zigzag", "64 tokens in zigzag on 4 ranks", zigzag(4, 8))
    yield case("long", "20,000 tokens: every pair would be 400 million", zigzag(5, 2000))
    for i in range(3):
        yield case(
            f"random-{i + 1}" if i < 2 else "random-hidden",
            "tokens dealt at random",
            shuffled(draw, draw.randint(3, 6), draw.randint(30, 60)),
            hidden=i == 2,
        )
