"""Cases of the rotary embedding; the oracle multiplies complex numbers in float64."""

import cmath

import torch

from kvpipe_practice.case import Case, Tolerance

TOLERANCE = Tolerance(
    1e-4,
    why="float32 holds an angle of 100 radians to 1e-5, and correct ways to compute it differ by "
    "a few such steps",
)
HALF = Tolerance(
    5e-3,
    why="float16 keeps 11 bits; products, sum and result rounded to it cost a few times 2**-11",
)
BRAIN = Tolerance(
    3e-2,
    why="bfloat16 keeps 8 bits; products, sum and result rounded to it cost a few times 2**-8",
)


def oracle(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """A pair is a complex number; turning it is a product with exp(i * angle)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    y = torch.empty_like(pairs)
    for b, row in enumerate(positions.tolist()):
        for t, position in enumerate(row):
            turns = [cmath.rect(1, position / theta ** (i / half)) for i in range(half)]
            y[b, :, t] = pairs[b, :, t] * torch.tensor(turns, dtype=torch.complex128)
    return torch.cat([y.real, y.imag], dim=-1).to(x.dtype)


def case(name: str, tests: str, x, positions, theta: float = 10_000.0, **options) -> Case:
    positions = torch.as_tensor(positions)
    inputs = {"x": x, "positions": positions, "theta": theta}
    return Case(name, tests, inputs, oracle(x, positions, theta), **options)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=random)

    count = torch.tensor([1.0, 2.0, 3.0, 4.0])
    yield case(
        "example",
        "the example of the statement",
        count.repeat(1, 1, 2, 1),
        [[0, 1]],
    )
    yield case(
        "theta",
        "theta sets the angles: 500,000 turns the later pairs more slowly",
        count.repeat(1, 1, 2, 1),
        [[0, 1]],
        500_000.0,
    )
    yield case(
        "one-pair",
        "heads of size 2 have a single pair, which turns by the position itself",
        torch.tensor([1.0, 0.0]).repeat(1, 1, 3, 1),
        [[0, 1, 2]],
        100.0,
    )
    yield case(
        "gaps",
        "the angle comes from the position, not from the index in the row",
        count.repeat(1, 1, 3, 1),
        [[2, 3, 7]],
    )
    yield case(
        "left-padding",
        "each row has its own positions; padding at -1 is turned by the angle of -1",
        count.repeat(2, 1, 4, 1),
        [[0, 1, 2, 3], [-1, -1, 0, 1]],
    )
    yield case(
        "any-order",
        "positions may be in any order and repeat",
        normal(2, 1, 5, 4),
        [[9, 0, 4, 4, 1], [3, 8, 2, 0, 5]],
    )
    yield case(
        "heads",
        "all heads of a token turn by the same angles",
        count.repeat(1, 3, 3, 1),
        [[5, 6, 7]],
    )
    yield case(
        "bfloat16",
        "bfloat16 in gives bfloat16 out, with angles of far positions taken in float32",
        normal(2, 3, 4, 16).bfloat16(),
        [[255, 257, 1001, 2999], [-1, 0, 511, 2047]],
        tolerance=BRAIN,
    )
    yield case(
        "float16",
        "float16 in gives float16 out",
        normal(1, 2, 3, 8).half(),
        [[1000, 2049, 3001]],
        tolerance=HALF,
    )
    yield case(
        "transposed",
        "x need not be contiguous in memory: heads come from a transpose",
        normal(2, 5, 3, 8).transpose(1, 2),
        integers(-1, 50, 2, 5),
    )
    yield case(
        "random",
        "random values and positions, all sizes different",
        normal(2, 3, 5, 8),
        integers(-1, 100, 2, 5),
        1_000_000.0,
    )
    yield case(
        "random-hidden",
        "other random values, drawn anew in every run",
        10 * normal(3, 5, 7, 12),
        integers(-1, 100, 3, 7),
        float(integers(10, 100_000, 1)),
        hidden=True,
    )
