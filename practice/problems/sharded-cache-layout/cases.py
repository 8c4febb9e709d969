"""Cases of the cache layout; the oracle deals the tokens one by one."""

import random

from kvpipe_practice.case import Case

RESULT = ("local", "owner", "slot")


def dealt(length: int, n_ranks: int, interleave: int) -> tuple[list[int], int, int]:
    """Token by token; the rank changes when it has got its `interleave` tokens."""
    local, rank, got = [0] * n_ranks, 0, 0
    for _ in range(length):
        local[rank] += 1
        got += 1
        if got == interleave:
            rank, got = (rank + 1) % n_ranks, 0
    return local, rank, local[rank]


def oracle(lengths: list[int], n_ranks: int, interleave: int) -> tuple[list, list, list]:
    rows = [dealt(length, n_ranks, interleave) for length in lengths]
    return tuple([list(column) for column in zip(*rows, strict=True)])


def cases(seed: int):
    draw = random.Random(seed)

    def case(name, tests, lengths, n_ranks, interleave, expected=None, **options) -> Case:
        inputs = {"lengths": lengths, "n_ranks": n_ranks, "interleave": interleave}
        expected = expected or oracle(lengths, n_ranks, interleave)
        return Case(name, tests, inputs, expected, **options)

    yield case("example", "the example of the statement", [17, 6], 4, 2)
    yield case("one-at-a-time", "tokens are dealt one at a time", [7, 12, 3], 3, 1)
    yield case("one-rank", "one rank has everything", [5, 8], 1, 3)
    yield case("fewer-than-ranks", "a short sequence leaves ranks empty", [17, 2], 4, 16)
    yield case("empty", "a sequence without tokens, and two shorter than a deal", [0, 1, 4], 3, 5)
    yield case("whole-turns", "whole turns, one token less and one more", [24, 23, 25], 4, 3)
    yield case("whole-deals", "the next token begins a rank's share", [10, 15, 30], 5, 5)
    big, deal, n_ranks = 10**12 // 42, 6, 7
    grown = [
        [big * deal + n for n in row] for row in ([6, 6, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0])
    ]
    yield case(
        "long",
        "a million million tokens",
        [big * deal * n_ranks + 14, big * deal * n_ranks + 6],
        *(n_ranks, deal, (grown, [2, 1], [big * deal + 2, big * deal])),
    )
    for i in range(4):
        n_ranks, interleave = draw.randint(3, 6), draw.randint(7, 10)
        turn = n_ranks * interleave
        lengths = [turn * draw.randint(1, 4) + draw.randint(1, turn - 1) for _ in range(2 + i % 2)]
        yield case(
            f"random-{i + 1}" if i < 2 else f"random-hidden-{i - 1}",
            "any lengths, ranks and interleave",
            lengths,
            n_ranks,
            interleave,
            hidden=i > 1,
        )
