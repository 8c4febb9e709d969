"""Cases of pipelined decoding; the oracle lets batches run round until the picture repeats."""

import random
from fractions import Fraction
from itertools import count

from kvpipe_practice.case import Case, Tolerance

TOLERANCE = Tolerance(1e-9, why="one division of whole numbers in float64, which keeps 16 digits")
MANY = 40


def round_us(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> Fraction:
    """Time in which every batch makes one step, once the run has become periodic.

    What happens next depends only on when each batch is back and each stage is free. As soon as
    these times repeat, all shifted by the same amount, they repeat for ever.
    """
    hop = transfer_us if len(stage_us) > 1 else 0
    free, back, seen = [0] * len(stage_us), [0] * n_batches, {}
    for n_rounds in count():
        now = back[0]
        state = tuple(time - now for time in (*back, *free))
        if state in seen:
            earlier, then = seen[state]
            return Fraction(now - then, n_rounds - earlier)
        seen[state] = n_rounds, now
        for batch in range(n_batches):
            time = back[batch]
            for stage, work in enumerate(stage_us):
                done = max(time, free[stage]) + work
                time = done + hop
                free[stage] = done if overlap else time
            back[batch] = time


def oracle(stage_us: list[int], transfer_us: int, n_batches: int, overlap: bool) -> dict:
    def rate(n: int) -> Fraction:
        return n / round_us(stage_us, transfer_us, n, overlap)

    tpot = round_us(stage_us, transfer_us, n_batches, overlap)
    assert tpot.denominator == 1, tpot
    highest = rate(MANY)
    return {
        "tpot_us": int(tpot),
        "steps_per_s": float(1_000_000 * rate(n_batches)),
        "batches_to_fill": next(n for n in count(1) if rate(n) == highest),
    }


def cases(seed: int):
    draw = random.Random(seed)
    four = [5000] * 4

    def case(
        name: str, tests: str, stage_us, transfer_us, n_batches, overlap, said=None, hidden=False
    ):
        inputs = {
            "stage_us": stage_us,
            "transfer_us": transfer_us,
            "n_batches": n_batches,
            "overlap": overlap,
        }
        expected = oracle(*inputs.values())
        found = (expected["tpot_us"], round(expected["steps_per_s"], 2))
        found += (expected["batches_to_fill"],)
        assert said is None or said == found, (name, found)
        return Case(name, tests, inputs, expected, hidden=hidden)

    yield case(
        "example",
        "the example of the statement",
        [3000, 5000, 4000],
        200,
        2,
        True,
        (12_600, 158.73, 3),
    )
    yield case(
        "five-batches",
        "five batches in flight make one step per stage time, and each waits for its turn",
        four,
        200,
        5,
        True,
        (25_000, 200.0, 5),
    )
    yield case(
        "four-batches",
        "as many batches as stages leave every stage idle while they travel",
        four,
        200,
        4,
        True,
        (20_800, 192.31, 5),
    )
    yield case(
        "one-batch",
        "one batch alone: as slow as all stages and transfers together",
        four,
        200,
        1,
        True,
        (20_800, 48.08, 5),
    )
    yield case(
        "no-overlap",
        "without overlap a stage is occupied while it sends",
        four,
        200,
        5,
        False,
        (26_000, 192.31, 4),
    )
    yield case(
        "too-many",
        "batches beyond the filling add latency and no throughput",
        four,
        200,
        9,
        True,
        (45_000, 200.0, 5),
    )
    yield case(
        "uneven",
        "the slowest stage sets the pace, and fewer batches fill the pipeline",
        [2000, 8000, 3000],
        500,
        3,
        True,
        (24_000, 125.0, 2),
    )
    yield case(
        "no-transfer", "free transfers: P batches fill P equal stages", [3000] * 3, 0, 3, True
    )
    yield case("one-stage", "one stage sends nothing", [4000], 300, 2, False, (8000, 250.0, 1))
    yield case(
        "slow-network",
        "transfers longer than any stage need many batches to hide",
        [1000, 1500],
        9000,
        6,
        True,
        (20_500, 292.68, 14),
    )
    yield case(
        "slow-network-no-overlap",
        "transfers that cannot be hidden",
        [1000, 1500],
        9000,
        6,
        False,
        (63_000, 95.24, 2),
    )
    for i in range(4):
        hidden = i == 3
        n_stages = draw.randint(3, 6)
        yield case(
            "random-hidden" if hidden else f"random-{i + 1}",
            "other random stages" if hidden else "random stages, all different",
            draw.sample(range(1000, 6000, 10), n_stages),
            draw.randrange(100, 990, 10),
            draw.randint(2, 2 * n_stages),
            bool((i + seed) % 2),
            hidden=hidden,
        )
