"""Cases of the activation peak; the oracle looks at every moment and sums up what is alive then."""

import random

from kvpipe_practice.case import Case


def alive(rank: list, moment: int, size: list, kept: list) -> int:
    """Bytes held while the operation at this place in the list runs."""
    total = 0
    for kind, m, chunk in rank[: moment + 1]:
        if kind != "F":
            continue
        begun = rank[:moment]
        if ("B", m, chunk) in begun or ("W", m, chunk) in begun:
            continue
        total += kept[chunk] if ("I", m, chunk) in begun else size[chunk]
    return total


def oracle(order: list, size: list, kept: list) -> list[int]:
    return [
        max((alive(rank, t, size, kept) for t in range(len(rank))), default=0) for rank in order
    ]


def gpipe(P: int, M: int) -> list:
    return [[(kind, m, r) for kind in "FB" for m in range(M)] for r in range(P)]


def alternate(forwards: list, backwards: list, ahead: int) -> list:
    """So many forwards, then one of each in turn, then the backwards that are left."""
    rank, M = forwards[:ahead], len(forwards)
    for f, b in zip(forwards[ahead:], backwards, strict=False):
        rank += [f, b]
    return rank + backwards[max(0, M - ahead) :]


def one_f_one_b(P: int, M: int) -> list:
    def passes(kind: str, r: int) -> list:
        return [(kind, m, r) for m in range(M)]

    return [alternate(passes("F", r), passes("B", r), P - 1 - r) for r in range(P)]


def interleaved(P: int, M: int, v: int) -> list:
    """Chunks r, P + r, 2P + r, ... on rank r; P micro-batches at a time, chunk after chunk."""

    def passes(kind: str, r: int, rounds) -> list:
        groups = [range(first, min(first + P, M)) for first in range(0, M, P)]
        return [(kind, m, i * P + r) for group in groups for i in rounds for m in group]

    order = []
    for r in range(P):
        ahead = (v - 1) * P + 2 * (P - 1 - r)
        forwards, backwards = passes("F", r, range(v)), passes("B", r, range(v)[::-1])
        order.append(alternate(forwards, backwards, ahead))
    return order


def split_backward(order: list) -> list:
    """Each B becomes I and W; on rank r every W comes r input gradients late."""
    result = []
    for r, rank in enumerate(order):
        split, waiting = [], []
        for kind, m, chunk in rank:
            split.append((kind if kind == "F" else "I", m, chunk))
            waiting += [("W", m, chunk)] * (kind == "B")
            split += [waiting.pop(0) for _ in range(len(waiting) - r)]
        result.append(split + waiting)
    return result


def random_rank(draw: random.Random, chunks: list, M: int) -> list:
    """Any order in which forwards come before backwards, some of them split."""
    left = [
        [("F", m, c), *draw.choice(([("B", m, c)], [("I", m, c), ("W", m, c)]))]
        for m in range(M)
        for c in chunks
    ]
    rank = []
    while left:
        ops = draw.choice(left[:5])
        rank.append(ops.pop(0))
        left = [ops for ops in left if ops]
    return rank


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, order, size, kept, said=None, **options):
        inputs = {"order": order, "size": size, "kept": kept}
        expected = oracle(*inputs.values())
        assert said in (None, expected), (name, expected)
        return Case(name, tests, inputs, expected, **options)

    yield case(
        "example",
        "the example of the statement",
        [
            [
                *[("F", 0, 0), ("I", 0, 0), ("F", 1, 0), ("I", 1, 0), ("W", 0, 0), ("F", 2, 0)],
                *[("F", 3, 0), ("B", 2, 0), ("B", 3, 0), ("W", 1, 0)],
            ],
            [
                *[("F", 0, 1), ("B", 0, 1), ("F", 1, 1), ("B", 1, 1)],
                *[("F", 2, 1), ("F", 3, 1), ("B", 2, 1), ("B", 3, 1)],
            ],
        ],
        [60, 100],
        [25, 40],
        [145, 200],
    )
    yield case(
        "gpipe",
        "GPipe holds every micro-batch on every rank",
        gpipe(3, 4),
        [7, 5, 6],
        [0, 0, 0],
        [28, 20, 24],
    )
    yield case(
        "1f1b",
        "1F1B holds P - r micro-batches on rank r",
        one_f_one_b(4, 8),
        [1] * 4,
        [0] * 4,
        [4, 3, 2, 1],
    )
    yield case(
        "fewer-microbatches",
        "no rank holds more micro-batches than there are",
        one_f_one_b(5, 2),
        [10, 12, 14, 16, 18],
        [0] * 5,
        [20, 24, 28, 32, 18],
    )
    yield case(
        "late-weights",
        "weight gradients that come late hold their part",
        split_backward(one_f_one_b(3, 5)),
        [10, 10, 10],
        [4, 4, 4],
    )
    yield case(
        "peak-late",
        "the peak may come near the end, or be set by a larger chunk",
        [
            [
                *[("F", 0, 0), ("F", 1, 0), ("B", 0, 0), ("B", 1, 0)],
                *[("F", 0, 2), ("F", 1, 2), ("F", 2, 0), ("B", 0, 2), ("B", 1, 2), ("B", 2, 0)],
            ],
            [
                *[("F", 0, 1), ("I", 0, 1), ("W", 0, 1), ("F", 1, 1), ("F", 0, 3), ("I", 0, 3)],
                *[("F", 1, 3), ("B", 1, 3), ("W", 0, 3), ("B", 1, 1)],
            ],
        ],
        [3, 8, 5, 2],
        [1, 6, 4, 1],
        [13, 11],
    )
    yield case(
        "interleaved",
        "two chunks per rank, P = 4: 11, 9, 7 and 5 chunks",
        interleaved(4, 8, 2),
        [1] * 8,
        [0] * 8,
        [11, 9, 7, 5],
    )
    yield case(
        "nothing-kept",
        "an input gradient that needs nothing later frees everything",
        split_backward(one_f_one_b(2, 3)),
        [6, 9],
        [0, 0],
        [12, 9],
    )
    yield case(
        "idle-rank",
        "a rank without operations holds nothing",
        [[("F", 0, 0), ("B", 0, 0)], [], [("F", 0, 1), ("B", 0, 1)]],
        [4, 5],
        [0, 0],
        [4, 0, 5],
    )
    for i in range(3):
        hidden = i > 0
        P, v = draw.randint(3, 4), draw.randint(2, 3)
        size = draw.sample(range(20, 90), P * v)
        yield case(
            f"random-hidden-{i}" if hidden else "random",
            "other random orders" if hidden else "random orders of several chunks per rank",
            [random_rank(draw, list(range(r, P * v, P)), 4 + r) for r in range(P)],
            size,
            [draw.randint(5, s - 5) for s in size],
            hidden=hidden,
        )
