"""Cases of merging; the oracle is one softmax over all keys, float64, before they are parted."""

import math
from itertools import pairwise

import torch

from kvpipe_practice.case import Case, Tolerance

FIRST_S = 30  # what torch loads at first counts here
TOLERANCE = Tolerance(
    3e-5,
    why="float32 keeps 7 digits; an exponential, a sum and a division lose about one",
)
LARGE = Tolerance(
    2e-4,
    why="float32 keeps 7 digits: a log-sum-exp of 1,000 is known to 6e-5, and so is its weight",
)
RESULT = ("out", "lse")


def attend(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float64: scores (B, H, T, S) with -inf where unseen, v (B, H, S, D) -> out, lse."""
    lse = scores.logsumexp(dim=-1)
    weights = (scores - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
    return weights @ v, lse


def parts(scores: torch.Tensor, v: torch.Tensor, cuts: list[int], dtype, garbage: float):
    """The inputs of the problem: each stretch of keys attended to alone."""
    edges = [0, *cuts, v.shape[2]]
    outs, lses = [], []
    for a, b in pairwise(edges):
        out, lse = attend(scores[..., a:b], v[:, :, a:b])
        outs.append(out.masked_fill((lse == -torch.inf)[..., None], garbage))
        lses.append(lse)
    return torch.stack(outs).to(dtype), torch.stack(lses).float()


def rejoin(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every part as one key with its log-sum-exp as score and its output as value.

    What the parts were rounded to is what there is to merge. Only for rounded parts; the others
    have the softmax over all keys as oracle.
    """
    values = outs.double().masked_fill((lses == -torch.inf)[..., None], 0)
    lse = lses.double().logsumexp(dim=0)
    shares = (lses.double() - lse.masked_fill(lse == -torch.inf, 0)).exp()
    return torch.einsum("nbht,nbhtd->bhtd", shares, values), lse


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def size(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=random))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    def case(name, tests, sizes, cuts, q_positions, k_positions, **options):
        """Options: shift of the scores per key, dtype and garbage of parts that saw nothing."""
        (B, H, D), T, S = sizes, len(q_positions), len(k_positions)
        q_at, k_at = torch.tensor(q_positions), torch.tensor(k_positions)
        scores, v = 2 * normal(B, H, T, S), normal(B, H, S, D) + 0.5
        scores = scores + torch.tensor(options.pop("shift", [0.0] * S), dtype=torch.float64)
        scores = scores.masked_fill((k_at > q_at[:, None]) | (k_at < 0), -torch.inf)
        dtype = options.pop("dtype", torch.float32)
        outs, lses = parts(scores, v, cuts, dtype, options.pop("garbage", 0.0))
        rounded = dtype != torch.float32
        expected = rejoin(outs, lses) if rounded else attend(scores, v)
        expected = tuple(x.float() for x in expected)
        options.setdefault("tolerance", TOLERANCE)
        return Case(name, tests, {"outs": outs, "lses": lses}, expected, **options)

    yield Case(
        "example",
        "the example of the statement",
        {
            "outs": torch.tensor([2.0, 6.0]).view(2, 1, 1, 1, 1),
            "lses": torch.tensor([math.log(1.0), math.log(3.0)]).view(2, 1, 1, 1),
        },
        (torch.tensor([[[[5.0]]]]), torch.tensor([[[math.log(4.0)]]])),
        tolerance=TOLERANCE,
        limit_s=FIRST_S,
    )
    yield case("one-part", "one part comes out as it went in", (2, 1, 3), [], [6, 7], range(5))
    yield case(
        "three-parts",
        "parts of one key, of two and of four",
        *((2, 3, 2), [1, 3], [7, 8], list(range(7))),
    )
    yield case(
        "fewer-queries",
        "the last three queries of eight keys, causal: all see the first part, one all keys",
        *((2, 1, 4), [5, 7], [5, 6, 7], list(range(8))),
    )
    yield case(
        "large",
        "log-sum-exps of about 1,000, whose exponential is infinite",
        *((1, 2, 3), [2], [7], list(range(5))),
        shift=[1000.0] * 5,
        tolerance=LARGE,
    )
    yield case(
        "small",
        "log-sum-exps of about -1,000, whose exponential is 0",
        *((1, 2, 3), [2], [7], list(range(5))),
        shift=[-1000.0] * 5,
        tolerance=LARGE,
    )
    yield case(
        "far-apart",
        "parts 2,000 apart, and another query that sees only the small one",
        *((2, 1, 3), [2, 4], [1, 7], list(range(6))),
        shift=[-1000.0, -1000.0, 1000.0, 1000.0, 0.0, 0.0],
        tolerance=LARGE,
    )
    yield case(
        "sees-nothing-in-a-part",
        "query 2 sees no key of the second part",
        *((2, 2, 3), [3], [2, 6], list(range(5))),
    )
    yield case(
        "sees-nothing",
        "queries that see no key in any part, padding among them",
        *((2, 1, 3), [2, 3], [-1, 1, 9], [3, 4, 5, 6, 7]),
    )
    yield case(
        "garbage",
        "what a part holds for queries that saw none of it is infinite",
        *((2, 1, 3), [2, 3], [0, 1, 9], [1, 2, 3, 4]),
        garbage=torch.inf,
    )
    yield case(
        "garbage-nan",
        "what a part holds for queries that saw none of it is NaN",
        *((1, 2, 3), [2, 3], [0, 1, 9], [1, 2, 3, 4]),
        garbage=torch.nan,
    )
    yield case(
        "garbage-numbers",
        "what a part holds for queries that saw none of it is an ordinary number",
        *((1, 2, 3), [2, 3], [0, 1, 9], [1, 2, 3, 4]),
        garbage=7.0,
    )
    yield case(
        "bfloat16",
        "outputs in bfloat16; the result is float32 and is not rounded again",
        *((2, 2, 4), [2, 5, 6], [-1, 3, 9], list(range(8))),
        dtype=torch.bfloat16,
    )
    for i, name in enumerate(("random", "random-hidden-1", "random-hidden-2")):
        B, H, T, D = 2, 3, size(6, 7), size(8, 9)
        S = size(12, 16)
        k_at = (torch.randperm(S, generator=random) + 2).tolist()
        q_at = [1, *(torch.randperm(S + 4, generator=random)[: T - 1]).tolist()]
        cuts = sorted((torch.randperm(S - 1, generator=random)[:4] + 1).tolist())
        yield case(
            name,
            "random sizes and positions, all different",
            *((B, H, D), cuts, q_at, k_at),
            dtype=torch.bfloat16 if i == 2 else torch.float32,
            garbage=torch.nan,
            hidden=i > 0,
        )
