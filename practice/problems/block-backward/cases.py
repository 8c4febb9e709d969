"""Cases of the backward of a block; the oracle is autograd through the whole attention, float64.

The whole attention has two blocks, and its queries enter twice, once for the scores of each block:
the gradient of one copy is what that block contributes.
"""

import math

import torch

from kvpipe_practice.case import Case, Tolerance

FIRST_S = 30  # what torch loads at first counts here
TOLERANCE = Tolerance(
    2e-4,
    why="float32 keeps 7 digits; scores up to 100, their exponential and two products lose three",
    per="tensor",
)
NAMES = ("d_out", "q", "k", "v", "out", "lse", "q_positions", "k_positions")


def scores(q, k, q_positions, k_positions):
    """(B, K, group, T, S), -inf where a key is not visible."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    found = torch.einsum("bkgtd,bksd->bkgts", grouped, k) * q.shape[-1] ** -0.5
    hidden = (k_positions[None, :] > q_positions[:, None]) | (k_positions[None, :] < 0)
    return found.masked_fill(hidden, -torch.inf)


def whole(q, k, v, d_out, q_positions, k_positions, at):
    """The inputs of the problem for the block of keys up to `at`, and its gradients."""
    q_here, q_there, k_all, v_all = (x.double().clone().requires_grad_() for x in (q, q, k, v))
    parts = [
        scores(q_here, k_all[:, :, :at], q_positions, k_positions[:at]),
        scores(q_there, k_all[:, :, at:], q_positions, k_positions[at:]),
    ]
    joined = torch.cat(parts, dim=-1)
    blind = (joined == -torch.inf).all(dim=-1, keepdim=True)
    weights = joined.masked_fill(blind, 0).softmax(dim=-1).masked_fill(blind, 0)
    out = torch.einsum("bkgts,bksd->bkgtd", weights, v_all).flatten(1, 2)
    out.backward(d_out.double())
    lse = joined.detach().logsumexp(dim=-1).flatten(1, 2).float()
    block = k[:, :, :at].clone(), v[:, :, :at].clone()
    inputs = (d_out, q, *block, out.detach().float(), lse, q_positions, k_positions[:at].clone())
    grads = (q_here.grad, k_all.grad[:, :, :at], v_all.grad[:, :, :at])
    return inputs, tuple(grad.float().clone() for grad in grads)


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32).view(1, 1, -1, 1)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    def size(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=random))

    def case(name, tests, sizes, q_positions, k_positions, at, level=0.0, **options):
        B, H, K, D = sizes
        q_positions, k_positions = torch.tensor(q_positions), torch.tensor(k_positions)
        T, S = len(q_positions), len(k_positions)
        q, k, v = normal(B, H, T, D), normal(B, K, S, D), normal(B, K, S, D)
        q[..., 0], k[..., 0] = q[..., 0] + level, k[..., 0] + level
        d_out = normal(B, H, T, D)
        inputs, expected = whole(q, k, v, d_out, q_positions, k_positions, at)
        named = dict(zip(NAMES, inputs, strict=True))
        return Case(name, tests, named, expected, tolerance=TOLERANCE, **options)

    positions = torch.tensor([5, 6])
    lse = torch.tensor([[[1 + math.log(2), math.log(4)]]])
    example = (column(1, 1), column(1, 0), column(1, 0), column(2, 4), column(1, 1.5), lse)
    yield Case(
        "example",
        "the example of the statement",
        dict(zip(NAMES, (*example, positions, positions.clone()), strict=True)),
        (column(0.5, 0.125), column(0.5, 0), column(0.75, 0.25)),
        tolerance=TOLERANCE,
        limit_s=FIRST_S,
    )
    for name, tests, sizes, q_positions, k_positions, at, level in (
        ("one-head", "all keys of the block are visible", (1, 1, 1, 4), [7, 8, 9], range(5), 2, 0),
        (
            "causal",
            "some keys of the block come after some queries",
            *((2, 1, 1, 3), [2, 3, 4, 5], [3, 2, 5, 4, 0, 1], 4, 0),
        ),
        ("grouped", "six query heads, two KV heads", (2, 6, 2, 4), [4, 5, 6], range(5), 3, 0),
        (
            "sees-nothing-here",
            "a query that sees no key of this block, but others",
            *((1, 2, 1, 3), [1, 6], [4, 5, 6, 0, 1], 3, 0),
        ),
        (
            "sees-nothing",
            "queries that see no key at all, padding among them",
            *((2, 2, 1, 3), [-1, 1, 8], [4, 5, 7, 6], 3, 0),
        ),
        ("padding", "padding keys in it", (1, 2, 2, 5), [4, 5], [-1, -1, 2, 3, 4], 4, 0),
        (
            "large",
            "scores of about 100",
            *((2, 2, 1, 5), [5, 6, 7], [0, 1, 2, 3, 5, 6], 3, 15),
        ),
    ):
        yield case(name, tests, sizes, list(q_positions), list(k_positions), at, level)
    for name in ("random", "random-hidden"):
        K, group, at = size(3, 4), size(2, 3), size(6, 9)
        T, S = size(10, 12), at + size(3, 5)
        k_positions = torch.randperm(S, generator=random).tolist()
        q_positions = torch.randperm(S + 4, generator=random)[:T].tolist()
        sizes = (2, K * group, K, size(13, 16))
        tests = "random sizes and positions, all different"
        hidden = name.endswith("hidden")
        yield case(name, tests, sizes, q_positions, k_positions, at, hidden=hidden)
