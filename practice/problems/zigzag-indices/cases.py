"""Cases of zigzag indices; the oracle deals tokens one at a time and looks each one up."""

import random
from itertools import chain

from kvpipe_practice.case import Case

RESULT = ("tokens", "place")


def oracle(n_tokens: int, n_ranks: int) -> tuple[list[list[int]], list[int]]:
    """Lengths dealt like cards; then one token after the other goes to the rank of its block."""
    lengths = [0] * (2 * n_ranks)
    for card in range(n_tokens):
        lengths[card % (2 * n_ranks)] += 1
    tokens: list[list[int]] = [[] for _ in range(n_ranks)]
    token = 0
    for block, length in enumerate(lengths):
        for _ in range(length):
            tokens[min(block, 2 * n_ranks - 1 - block)].append(token)
            token += 1
    places = {token: index for index, token in enumerate(chain(*tokens))}
    return tokens, [places[token] for token in range(n_tokens)]


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, n_tokens: int, n_ranks: int, **options) -> Case:
        inputs = {"n_tokens": n_tokens, "n_ranks": n_ranks}
        return Case(name, tests, inputs, oracle(n_tokens, n_ranks), **options)

    yield case("example", "the example of the statement", 10, 2)
    yield case("even", "all blocks have two tokens", 12, 3)
    yield case("smallest", "one token in every block", 8, 4)
    yield case("one-more", "one token more than a multiple of 2P", 9, 4)
    yield case("one-rank", "one rank has everything, in order", 5, 1)
    yield case("seven-on-two", "7 tokens on 2 ranks: the last one is not lost", 7, 2)
    yield case("long", "3,000 tokens on 7 ranks", 3_000, 7)
    for i in range(3):
        n_ranks = draw.randint(3, 9)
        n_tokens = 2 * n_ranks * draw.randint(1, 5) + draw.randint(1, 2 * n_ranks - 1)
        yield case(
            f"random-{i + 1}" if i < 2 else "random-hidden",
            "any length and number of ranks",
            n_tokens,
            n_ranks,
            hidden=i == 2,
        )
