"""Cases of the wrong claim; truth is autograd in float64, the claim summed by its definition."""

import math

import torch

from kvpipe_practice.case import Case, Tolerance

FIRST_S = 30  # what torch loads at first counts here
TOLERANCE = Tolerance(
    5e-5,
    why="float32 keeps 7 digits; a softmax, a difference and two products lose about two",
    per="tensor",
)
NAMES = ("q", "k", "v", "d_out", "n_first")


def truth(q, k, v, d_out) -> tuple:
    q, k = (x.double().clone().requires_grad_() for x in (q, k))
    scores = torch.einsum("td,sd->ts", q, k) / math.sqrt(q.shape[1])
    weights = (scores - scores.logsumexp(dim=1, keepdim=True)).exp()
    (torch.einsum("ts,sd->td", weights, v.double()) * d_out.double()).sum().backward()
    return q.grad.float(), k.grad.float()


def dot(a, b) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def claim(q, k, v, d_out, n_first) -> tuple:
    """Number by number, in Python's floats."""
    q, k, v, d_out = (x.tolist() for x in (q, k, v, d_out))
    scale = 1 / math.sqrt(len(q[0]))
    d_q, d_k = ([[0.0] * len(q[0]) for _ in rows] for rows in (q, k))
    for i, query in enumerate(q):
        scores = [scale * dot(query, key) for key in k]
        norm = math.fsum(math.exp(s - max(scores)) for s in scores)
        P = [math.exp(s - max(scores)) / norm for s in scores]
        dP = [dot(d_out[i], value) for value in v]
        for block in (range(n_first), range(n_first, len(k))):
            D = math.fsum(P[j] * dP[j] for j in block)
            for j in block:
                dS = P[j] * (dP[j] - D) * scale
                for d in range(len(query)):
                    d_q[i][d] += dS * k[j][d]
                    d_k[j][d] += dS * query[d]
    return torch.tensor(d_q), torch.tensor(d_k)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def size(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=random))

    def drawn(T: int, S: int, D: int, scale: float = 1.0) -> tuple:
        q, k, v, d_out = (torch.randn(n, D, generator=random) for n in (T, S, S, T))
        return q * scale, k * scale, v, d_out

    def case(name: str, tests: str, tensors: tuple, n_first: int, **options):
        expected = (*claim(*tensors, n_first), *truth(*tensors))
        inputs = dict(zip(NAMES, (*tensors, n_first), strict=True))
        return Case(name, tests, inputs, expected, tolerance=TOLERANCE, **options)

    example = ([[2.0]], [[0.0], [0.0]], [[1.0], [3.0]], [[1.0]])
    yield case(
        "example",
        "the example of the statement",
        tuple(map(torch.tensor, example)),
        1,
        limit_s=FIRST_S,
    )
    yield case("scale", "the scale of a wider head", drawn(1, 3, 5), 2)
    yield case("uneven-blocks", "blocks of one key and of five", drawn(2, 6, 3), 1)
    yield case("large", "some keys have most of the weight of a row", drawn(3, 5, 4, 1.5), 2)
    for name in ("random", "random-hidden"):
        tensors = drawn(size(4, 6), size(8, 11), size(13, 16))
        hidden = name.endswith("hidden")
        yield case(name, "random sizes, all different", tensors, size(2, 5), hidden=hidden)
