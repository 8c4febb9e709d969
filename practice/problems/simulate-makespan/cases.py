"""Cases of the makespan; the oracle pushes all starts later until they stand still, or knows it."""

import random
from math import inf

from kvpipe_practice.case import Case

NEVER_S = 2.0


def gpipe(P: int, M: int) -> list:
    return [[(kind, m) for kind in "FB" for m in range(M)] for _ in range(P)]


def one_f_one_b(P: int, M: int) -> list:
    """A forward while fewer than P - r micro-batches are held, otherwise the oldest backward."""
    order = []
    for r in range(P):
        forwards, backwards = 0, 0
        rank = []
        while backwards < M:
            if forwards < M and forwards - backwards < P - r:
                rank.append(("F", forwards))
                forwards += 1
            else:
                rank.append(("B", backwards))
                backwards += 1
        order.append(rank)
    return order


def random_order(draw: random.Random, P: int, M: int) -> list:
    """Whatever order the ranks would have if ready operations ran one by one, drawn by lot."""
    order, done = [[] for _ in range(P)], set()
    while len(done) < 2 * P * M:
        ready = [
            (kind, m, r)
            for r in range(P)
            for m in range(M)
            for kind in "FB"
            if (kind, m, r) not in done and needs(kind, m, r, P) <= done
        ]
        kind, m, r = draw.choice(ready)
        done.add((kind, m, r))
        order[r].append((kind, m))
    return order


def needs(kind: str, m: int, r: int, P: int) -> set:
    if kind == "F":
        return {("F", m, r - 1)} if r else set()
    return {("F", m, r), ("B", m, r + 1)} if r < P - 1 else {("F", m, r)}


def oracle(order: list, cost: list, transfer: int) -> int | None:
    """Start everything at 0 and push later whatever starts too early, until nothing does.

    An operation whose needs are in no list starts never; one that is pushed for ever, past the
    time in which all could run one by one, waits for itself.
    """
    P = len(order)
    before = {}
    for r, rank in enumerate(order):
        for i, (kind, m) in enumerate(rank):
            before[kind, m, r] = needs(kind, m, r, P) | ({(*rank[i - 1], r)} if i else set())
    start = dict.fromkeys(before, 0)
    horizon = sum(cost[r][kind] + transfer for kind, m, r in before)
    changed = True
    while changed:
        changed = False
        for op, earlier in before.items():
            ends = [
                start.get(e, inf) + cost[e[2]][e[0]] + transfer * (e[2] != op[2]) for e in earlier
            ]
            if max(ends, default=0) > start[op]:
                start[op] = max(ends)
                if start[op] > horizon:
                    return None
                changed = True
    return max(start[kind, m, r] + cost[r][kind] for kind, m, r in start)


def costs(*stages: int) -> list:
    """Forward and backward of stages that are so many layers."""
    return [{"F": s, "B": 2 * s} for s in stages]


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, order, cost, transfer, said=None, *, known=False, **options):
        inputs = {"order": order, "cost": cost, "transfer": transfer}
        expected = said if known else oracle(*inputs.values())
        assert said in (None, expected), (name, expected)
        return Case(name, tests, inputs, expected, **options)

    yield case(
        "example",
        "the example of the statement",
        [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("B", 0), ("F", 1), ("B", 1)]],
        [{"F": 3, "B": 4}, {"F": 2, "B": 6}],
        2,
        27,
    )
    yield case("one-rank", "one rank waits for nobody", one_f_one_b(1, 3), costs(2), 5, 18)
    yield case("gpipe", "GPipe, P = 4, M = 8, F = 1, B = 2", gpipe(4, 8), costs(1, 1, 1, 1), 0, 33)
    yield case(
        "1f1b",
        "1F1B takes as long on equal stages",
        one_f_one_b(4, 8),
        costs(1, 1, 1, 1),
        0,
        33,
    )
    yield case(
        "gpipe-slow-first",
        "a first stage twice as slow: each rank keeps to its order",
        gpipe(4, 8),
        costs(2, 1, 1, 1),
        0,
        57,
    )
    yield case(
        "1f1b-slow-first",
        "the same stages under 1F1B",
        one_f_one_b(4, 8),
        costs(2, 1, 1, 1),
        0,
        51,
    )
    yield case(
        "1f1b-slow-last",
        "a slow last stage gains nothing from 1F1B",
        one_f_one_b(4, 8),
        costs(1, 1, 1, 2),
        0,
        57,
    )
    yield case(
        "transfers",
        "transfers in both directions, while ranks go on computing",
        one_f_one_b(3, 5),
        [{"F": 3, "B": 4}, {"F": 2, "B": 7}, {"F": 4, "B": 5}],
        2,
    )
    yield case(
        "fewer-microbatches",
        "fewer micro-batches than ranks",
        one_f_one_b(5, 2),
        costs(3, 1, 4, 2, 5),
        1,
    )
    yield case(
        "forward-only",
        "without backwards the last rank ends last",
        [[("F", m) for m in range(4)] for _ in range(3)],
        costs(2, 5, 3),
        1,
        27,
    )
    yield case(
        "impossible",
        "two ranks that wait for each other never end",
        [[("F", 0), ("B", 0), ("F", 1), ("B", 1)], [("F", 0), ("F", 1), ("B", 0), ("B", 1)]],
        costs(1, 1),
        0,
        limit_s=NEVER_S,
    )
    yield case(
        "never-run",
        "an operation waits for one that is in no list",
        [[("F", 0), ("B", 0)], [("F", 0)]],
        costs(1, 1),
        0,
        limit_s=NEVER_S,
    )
    for name, tests, order in (
        (
            "backwards-alone",
            "a backward whose own forward is in no list never starts",
            [[("B", 0)], [("B", 0)]],
        ),
        (
            "backward-first",
            "a backward before its own forward never starts",
            [[("B", 0), ("F", 0)]],
        ),
        ("backward-alone", "nor does one on a single rank without forwards", [[("B", 0)]]),
        (
            "backward-first-last-rank",
            "a backward before its own forward on the last rank, which waits for nothing else",
            [[("F", 0)], [("B", 0), ("F", 0)]],
        ),
        (
            "backward-first-middle-rank",
            "a backward before its own forward on the middle one of three ranks",
            [[("F", 0)], [("B", 0), ("F", 0)], [("F", 0), ("B", 0)]],
        ),
    ):
        cost = costs(*range(1, len(order) + 1))
        yield case(name, tests, order, cost, 1, limit_s=NEVER_S)
    yield case(
        "large",
        "4 ranks, 512 micro-batches: (M + P - 1) (F + B)",
        one_f_one_b(4, 512),
        [{"F": 3, "B": 5}] * 4,
        0,
        (512 + 4 - 1) * 8,
        known=True,
    )
    for i in range(4):
        hidden = i > 1
        P, M = draw.randint(3, 4), draw.randint(5, 7)
        order = one_f_one_b(P, M) if i == 0 else random_order(draw, P, M)
        times = iter(draw.sample(range(2, 40), 2 * P))
        yield case(
            f"random-hidden-{i - 1}" if hidden else f"random-{i + 1}",
            "another random order" if hidden else "random costs, all different, and transfers",
            order,
            [{"F": next(times), "B": next(times)} for _ in range(P)],
            draw.randint(1, 9),
            hidden=hidden,
        )
