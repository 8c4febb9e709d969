"""Cases of 1F1B; the oracle gives each operation its place by counting what precedes it."""

import random

from kvpipe_practice.case import Case


def oracle(rank: int, n_ranks: int, n_microbatches: int) -> list[tuple[str, int]]:
    """Sort all operations by their place.

    When micro-batch m goes backward, micro-batches up to m + (ranks behind) have gone forward,
    and m others backward. When it goes forward, all before it have, and those backward that
    leave no more than (ranks behind) held.
    """
    behind, M = n_ranks - 1 - rank, n_microbatches
    place = {("B", m): m + min(M, m + behind + 1) for m in range(M)}
    place |= {("F", m): m + max(0, m - behind) for m in range(M)}
    assert sorted(place.values()) == list(range(2 * M))
    return sorted(place, key=place.get)


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, rank: int, n_ranks: int, n_microbatches: int, said="", **more):
        inputs = {"rank": rank, "n_ranks": n_ranks, "n_microbatches": n_microbatches}
        expected = oracle(*inputs.values())
        found = " ".join(f"{kind}{m}" for kind, m in expected)
        assert said in ("", found), (name, found)
        return Case(name, tests, inputs, expected, **more)

    yield case(
        "example", "the example of the statement", 2, 5, 6, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    )
    yield case(
        "first-rank", "rank 0 has the longest warm-up", 0, 4, 5, "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    )
    yield case("last-rank", "the last rank has no warm-up", 3, 4, 3, "F0 B0 F1 B1 F2 B2")
    yield case("as-many", "as many micro-batches as ranks", 0, 3, 3, "F0 F1 F2 B0 B1 B2")
    yield case("fewer", "fewer micro-batches than ranks behind", 0, 6, 2, "F0 F1 B0 B1")
    yield case("fewer-middle", "M < P on a rank further back", 4, 6, 3, "F0 F1 B0 F2 B1 B2")
    yield case("one-microbatch", "a single micro-batch", 1, 4, 1, "F0 B0")
    yield case("one-rank", "a pipeline of one rank", 0, 1, 3, "F0 B0 F1 B1 F2 B2")
    yield case("long", "many micro-batches", 5, 16, 512)
    for i in range(3):
        hidden = i > 0
        n_ranks = draw.randint(6, 12)
        n_microbatches = draw.randint(2, n_ranks - 2) if i == 1 else draw.randint(13, 24)
        yield case(
            f"random-hidden-{i}" if hidden else "random",
            "another rank of another pipeline" if hidden else "a random rank",
            draw.randint(1, n_ranks - 2),
            n_ranks,
            n_microbatches,
            hidden=hidden,
        )
