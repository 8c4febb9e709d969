"""Cases of bytes sent; the oracle plays every send of every rank and weighs rank 0's."""

import random

from kvpipe_practice.case import Case

NAMES = ("method", "n_ranks", "n_tokens", "n_heads", "n_kv_heads", "head_size", "batch")


def ring(P: int, block: int) -> tuple[int, int]:
    """Blocks move until each has been everywhere; gradients until they are home."""
    seen, forward, place = [{rank} for rank in range(P)], 0, list(range(P))
    while any(len(visited) < P for visited in seen):
        forward += 2 * block  # rank 0 passes on the one block that it has
        place = [(rank + 1) % P for rank in place]
        for visited, rank in zip(seen, place, strict=True):
            visited.add(rank)
    backward, moves = forward, 0
    while P > 1 and (moves == 0 or moves % P):
        backward += 4 * block
        moves += 1
    return forward, backward


def ulysses(P: int, tokens: int, heads: list[int], size: int) -> tuple[int, int]:
    """Head by head: a rank keeps its own share of every tensor and sends each other share."""
    sent = 0
    for n_heads in heads:
        for head in range(n_heads):
            if head // (n_heads // P) != 0:  # another rank's
                sent += tokens * size * 2
    return sent, sent


def oracle(method, P, S, H, K, D, B) -> tuple[int, int]:
    if method == "ring":
        return ring(P, 2 * B * (S // P) * K * D)
    return ulysses(P, B * (S // P), [H, K, K, H], D)


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, *sizes, said=None, **options):
        expected = oracle(*sizes)
        assert said in (None, expected), (name, expected)
        return Case(name, tests, dict(zip(NAMES, sizes, strict=True)), expected, **options)

    yield case("ring", "the ring on two ranks", *("ring", 2, 4, 4, 2, 8, 1), said=(128, 640))
    yield case("ulysses", "Ulysses on two ranks", *("ulysses", 2, 4, 4, 2, 8, 1), said=(192, 192))
    yield case("ring-of-four", "gradients come home in P sends", *("ring", 4, 12, 6, 3, 5, 2))
    yield case("ulysses-of-four", "a quarter stays at home", *("ulysses", 4, 20, 12, 4, 3, 2))
    yield case("ring-alone", "one rank sends nothing", *("ring", 1, 7, 4, 2, 3, 2), said=(0, 0))
    yield case(
        "ulysses-alone", "one rank sends nothing", *("ulysses", 1, 7, 4, 2, 3, 2), said=(0, 0)
    )
    yield case(
        "llama3-8b-ring",
        "Llama-3-8B, 65,536 tokens on 8 ranks: 224 and 736 MiB",
        *("ring", 8, 65_536, 32, 8, 128, 1),
        said=(224 * 2**20, 736 * 2**20),
    )
    yield case(
        "llama3-8b-ulysses",
        "the same with Ulysses: 140 MiB each way",
        *("ulysses", 8, 65_536, 32, 8, 128, 1),
        said=(140 * 2**20, 140 * 2**20),
    )
    for i in range(6):
        P, group, share = draw.randint(3, 6), draw.randint(2, 4), draw.randint(1, 3)
        yield case(
            f"random-{i + 1}" if i < 4 else f"random-hidden-{i - 3}",
            "random sizes, all different",
            ("ring", "ulysses")[i % 2],
            P,
            P * draw.randint(20, 40),
            P * share * group,
            P * share,
            draw.randint(7, 13),
            draw.randint(2, 5),
            hidden=i > 3,
        )
