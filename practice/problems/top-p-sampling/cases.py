"""Cases of top-p sampling; the oracle goes through each row's tokens one by one, exactly."""

from fractions import Fraction

import torch

from kvpipe_practice.case import Case, Tolerance

TOLERANCE = Tolerance(
    1e-5,
    why="float32 keeps 7 digits; a sum over the vocabulary and a division lose about one of them",
)
MARGIN = 1e-4  # of random sums around p: rounding in float32 must not decide which tokens are kept


def falling(row: list[float]) -> list[int]:
    """Token ids by falling probability, equal ones by id."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def oracle(probs: torch.Tensor, p: float) -> torch.Tensor:
    """Add up tokens in exact fractions until the sum reaches p."""
    out = torch.zeros_like(probs, dtype=torch.float64)
    for b, row in enumerate(probs.tolist()):
        kept, mass = [], Fraction(0)
        for token in falling(row):
            kept.append(token)
            mass += Fraction(row[token])
            if mass >= Fraction(p):
                break
        for token in kept:
            out[b, token] = float(Fraction(row[token]) / mass)
    return out.float()


def clear_p(probs: torch.Tensor, wanted: float) -> float:
    """The first p from `wanted` on that no row's cumulative sum comes close to."""
    sums = probs.double().sort(dim=-1, descending=True).values.cumsum(dim=-1)
    while (sums - wanted).abs().min() < MARGIN:
        wanted += MARGIN
    return wanted


def case(name: str, tests: str, probs, p: float, **options) -> Case:
    probs = torch.as_tensor(probs)
    return Case(name, tests, {"probs": probs, "p": p}, oracle(probs, p), **options)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def distribution(B: int, V: int, sharpness: float) -> torch.Tensor:
        return (sharpness * torch.randn(B, V, generator=random)).softmax(dim=-1)

    yield case("example", "the example of the statement", [[0.125, 0.0625, 0.25, 0.5, 0.0625]], 0.8)
    yield case(
        "one-token",
        "a token that reaches p alone is the only one kept",
        [[0.125, 0.125, 0.75]],
        0.5,
    )
    yield case(
        "exactly-reached",
        "a set that sums to exactly p is large enough",
        [[0.125, 0.25, 0.5, 0.125]],
        0.75,
    )
    yield case(
        "ties",
        "of equally likely tokens those with lower ids are kept, and no more than needed",
        [[0.125, 0.25, 0.25, 0.125, 0.25]],
        0.5,
    )
    yield case(
        "everything",
        "p = 1 keeps every token that has a probability",
        [[0.25, 0.0, 0.5, 0.125, 0.125]],
        1.0,
    )
    yield case(
        "own-sets",
        "each row has its own set: a sure row keeps few tokens, an unsure one many",
        [[0.0625, 0.875, 0.0625, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.125, 0.125, 0.25]],
        0.7,
    )
    probs = distribution(2, 5, 1.0)
    yield case("tiny-p", "a tiny p keeps the most likely token", probs, 1e-6)
    probs = distribution(2, 3, 1.0).t().contiguous().t()
    yield case("transposed", "probs need not be contiguous in memory", probs, clear_p(probs, 0.6))
    probs = distribution(3, 17, 1.5)
    yield case("random", "random rows, all sizes different", probs, clear_p(probs, 0.7))
    probs = distribution(4, 1000, 3.0)
    yield case("large", "a vocabulary of 1,000 tokens", probs, clear_p(probs, 0.9))
    probs = distribution(5, 29, 2.0)
    p = clear_p(probs, 0.3 + 0.6 * float(torch.rand((), generator=random)))
    yield case("random-hidden", "other random rows and another p", probs, p, hidden=True)
