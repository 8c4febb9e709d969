"""Cases of RMSNorm; the oracle is torch's own rms_norm in float64."""

import torch
import torch.nn.functional as F

from kvpipe_practice.case import Case, Tolerance

FORBIDDEN = ("torch.nn.functional.rms_norm", "torch.rms_norm", "torch.nn.RMSNorm")

TOLERANCE = Tolerance(
    1e-5,
    why="float32 keeps 7 digits; a mean of up to 64 squares and a root lose about one of them",
)
HALF = Tolerance(
    2e-3,
    why="float16 keeps 11 bits; two roundings, before and after the weight, cost 2 x 2**-11",
)
BRAIN = Tolerance(
    1.6e-2,
    why="bfloat16 keeps 8 bits; two roundings, before and after the weight, cost 2 x 2**-8",
)


def oracle(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.double(), weight.shape, weight.double(), eps).to(x.dtype)


def case(name: str, tests: str, x, weight, eps: float = 1e-6, **options) -> Case:
    inputs = {"x": x, "weight": weight, "eps": eps}
    return Case(name, tests, inputs, oracle(x, weight, eps), **options)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    yield case(
        "example",
        "the example of the statement",
        torch.tensor([[3.0, 4.0]]),
        torch.tensor([1.0, 2.0]),
        0.0,
    )
    yield case(
        "no-mean-subtracted",
        "a vector far from zero mean is not centred",
        torch.tensor([[5.0, 6.0, 7.0], [-1.0, -2.0, -4.0]]),
        torch.ones(3),
    )
    yield case(
        "each-token-alone",
        "a large token does not change a small one beside it",
        torch.tensor([[[1.0, 2.0], [300.0, 400.0]], [[1.0, 3.0], [50.0, 10.0]]]),
        torch.ones(2),
    )
    yield case(
        "weight",
        "each channel has its own weight",
        torch.tensor([[1.0, -2.0, 2.0]]),
        torch.tensor([0.5, -1.0, 3.0]),
    )
    yield case(
        "eps-inside-root",
        "eps is added to the mean of squares, before the root",
        torch.tensor([[0.01, -0.02, 0.005, 0.01]]),
        torch.ones(4),
        1e-3,
    )
    yield case(
        "zero-vector",
        "a vector of zeros gives zeros, not NaN",
        torch.zeros(2, 3),
        torch.ones(3),
        1e-5,
    )
    yield case("one-vector", "x may have no leading dimension at all", normal(5), normal(5))
    yield case(
        "float16-large",
        "the squares of float16 values above 256 do not overflow",
        torch.tensor([[300.0, -500.0, 1000.0, 60.0]]).half(),
        torch.ones(4).half(),
        tolerance=HALF,
    )
    yield case(
        "bfloat16",
        "bfloat16 in gives bfloat16 out",
        normal(3, 4, 64).bfloat16(),
        normal(64).bfloat16(),
        tolerance=BRAIN,
    )
    yield case(
        "transposed",
        "x need not be contiguous in memory",
        normal(2, 7, 5).transpose(1, 2),
        normal(7),
    )
    yield case("random", "random values, all sizes different", normal(2, 3, 5, 7), normal(7))
    yield case(
        "random-hidden",
        "other random values, drawn anew in every run",
        10 * normal(3, 11, 16),
        normal(16),
        1e-5,
        hidden=True,
    )
