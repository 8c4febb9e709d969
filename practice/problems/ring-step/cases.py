"""Cases of a step of the ring; the oracle passes blocks on, one step after the other."""

import random

from kvpipe_practice.case import Case

RESULT = ("block", "holder", "arriving")


def oracle(ring: list[int], step: int) -> tuple[list, list, list]:
    """A dict from rank to block, and every rank hands its block to the next."""
    sends_to = dict(zip(ring, [*ring[1:], ring[0]], strict=True))

    def passed_on(held: dict) -> dict:
        return {sends_to[rank]: block for rank, block in held.items()}

    held = {rank: rank for rank in ring}
    for _ in range(step):
        held = passed_on(held)
    coming = passed_on(held) if step + 1 < len(ring) else dict.fromkeys(ring)
    found = {block: rank for rank, block in held.items()}
    return tuple([each[number] for number in sorted(ring)] for each in (held, found, coming))


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, ring: list[int], step: int, **options) -> Case:
        return Case(name, tests, {"ring": ring, "step": step}, oracle(ring, step), **options)

    yield case("example", "the example of the statement", [0, 2, 1, 3], 1)
    yield case("start", "step 0: everybody has its own block", [0, 1, 2], 0)
    yield case("in-order", "ranks stand by number, one step", [0, 1, 2, 3, 4], 1)
    yield case("further", "three steps of five", [0, 1, 2, 3, 4], 3)
    yield case("last", "the last step: nothing is on its way", [0, 1, 2], 2)
    yield case("one-rank", "one rank has one step", [0], 0)
    yield case("two-ranks", "two ranks, the second step, which is the last", [1, 0], 1)
    yield case("other-start", "the list may begin anywhere in the circle", [2, 3, 0, 1], 2)
    for i in range(4):
        ring = list(range(draw.randint(5, 9)))
        draw.shuffle(ring)
        step = len(ring) - 1 if i == 2 else draw.randint(1, len(ring) - 2)
        yield case(
            f"random-{i + 1}" if i < 2 else f"random-hidden-{i - 1}",
            "the last step of any circle" if i == 2 else "a step of any circle",
            ring,
            step,
            hidden=i > 1,
        )
    many = list(range(500))
    draw.shuffle(many)
    yield case("many-ranks", "500 ranks", many, draw.randint(200, 300))
