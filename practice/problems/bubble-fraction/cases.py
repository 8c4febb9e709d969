"""Cases of the bubble; the oracle counts cells of a grid of time, or knows the closed form."""

import random
from fractions import Fraction

from kvpipe_practice.case import Case, Tolerance

TOLERANCE = Tolerance(
    1e-9, why="a few sums and one division in float64, which keeps 16 digits; no step loses more"
)
NAMES = ("bubble/ideal", "bubble/makespan", "per-stage span")


def gpipe(P: int, M: int, F: int, B: int) -> list[list[tuple[int, int]]]:
    """All forwards, then all backwards, written down by formula for equal stages."""
    turn = (M + P - 1) * F
    return [
        [((r + m) * F, (r + m + 1) * F) for m in range(M)]
        + [(turn + (P - 1 - r + m) * B, turn + (P - r + m) * B) for m in range(M)]
        for r in range(P)
    ]


def oracle(timeline: list) -> dict:
    """Paint each rank's operations into cells of one unit and count the empty ones."""
    rows = [{cell for start, end in rank for cell in range(start, end)} for rank in timeline]
    painted = set().union(*rows)
    window = range(min(painted), max(painted) + 1)
    idle = sum(cell not in row for row in rows for cell in window)
    longest = max(max(row) - min(row) + 1 for row in rows if row)
    busy = sum(map(len, rows))
    short = len(rows) * longest
    values = (Fraction(idle, busy), Fraction(idle, idle + busy), Fraction(short - busy, short))
    return dict(zip(NAMES, map(float, values), strict=True))


def scaled(timeline: list, factor: float, shift: float) -> list:
    return [[(s * factor + shift, e * factor + shift) for s, e in rank] for rank in timeline]


def random_timeline(draw: random.Random) -> list:
    """Ranks that begin and end at different times, with pauses of random length."""
    timeline = []
    for r in range(draw.randint(3, 6)):
        clock, rank = draw.randint(5 * r, 5 * r + 20), []
        for _ in range(draw.randint(4 + r, 9 + r)):
            clock += draw.choice((0, 0, draw.randint(1, 9)))
            rank.append((clock, clock + draw.randint(1, 7)))
            clock = rank[-1][1]
        timeline.append(rank)
    return timeline


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, timeline: list, values: tuple | None = None, **options):
        expected = oracle(timeline)
        if values:
            assert tuple(expected.values()) == tuple(map(float, values)), (name, expected)
        return Case(name, tests, {"timeline": timeline}, expected, **options)

    yield case(
        "example",
        "the example of the statement",
        [[(0, 1), (1, 2), (6, 8)], [(2, 3), (3, 4), (8, 10)]],
        (1.5, 0.6, 0.5),
    )
    yield case(
        "gpipe",
        "GPipe with P = 2, M = 2, F = 1, B = 2: (P - 1) / M is 1/2",
        gpipe(2, 2, 1, 2),
        (Fraction(1, 2), Fraction(1, 3), Fraction(1, 3)),
    )
    yield case(
        "skewed",
        "ranks that never pause but start one after the other: no bubble inside any span",
        [[(0, 3), (3, 6)], [(1, 4), (4, 7)], [(2, 5), (5, 8)]],
        (Fraction(1, 3), Fraction(1, 4), 0),
    )
    yield case(
        "unequal-spans",
        "the longest span counts for every rank, not each rank's own",
        [[(0, 2), (4, 6), (8, 10)], [(2, 3), (3, 4)]],
        (Fraction(3, 2), Fraction(3, 5), Fraction(3, 5)),
    )
    yield case(
        "clock",
        "a clock that does not begin at zero",
        [[(100, 104), (106, 110)], [(104, 106), (110, 112)]],
        (1, Fraction(1, 2), Fraction(2, 5)),
    )
    yield case(
        "late-first-rank",
        "the first start and the last end may be on any rank",
        [[(5, 7), (8, 9)], [(1, 4), (6, 12)], [(2, 3), (9, 13)]],
    )
    yield case(
        "idle-rank",
        "a rank without operations was idle all the time",
        [[(0, 4), (5, 9)], [], [(1, 3), (3, 7)]],
        (Fraction(13, 14), Fraction(13, 27), Fraction(13, 27)),
    )
    yield case("one-rank", "one rank that never waits has no bubble", [[(2, 5), (5, 9)]], (0, 0, 0))
    yield case(
        "gpipe-4-8",
        "GPipe with P = 4, M = 8, F = 1, B = 2: makespan 33, bubble 3/8 of the ideal",
        gpipe(4, 8, 1, 2),
        (Fraction(3, 8), Fraction(3, 11), Fraction(3, 11)),
    )
    timeline = random_timeline(draw)
    yield case("random", "a random timeline in whole units", timeline)
    timeline = random_timeline(draw)
    yield Case(
        "random-hidden",
        "another random timeline, in seconds of a running clock",
        {"timeline": scaled(timeline, 0.013, 1717.25)},
        oracle(timeline),
        hidden=True,
    )
