"""Cases of grouped-query attention; the oracle picks each query's visible keys one by one."""

import math

import torch

from kvpipe_practice.case import Case, Tolerance

FORBIDDEN = (
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.nn.functional.multi_head_attention_forward",
    "torch.nn.MultiheadAttention",
)

TOLERANCE = Tolerance(
    2e-5,
    why="float32 keeps 7 digits; a score of size 10 in the exponent costs one, the sums another",
)
LARGE = Tolerance(
    2e-3,
    why="float32 computes a score of 500 to 1e-4, and the exponential turns that into 1e-4 of a "
    "weight",
)


def oracle(q, k, v, q_positions, k_positions) -> torch.Tensor:
    """No mask: a softmax over the visible keys only, one query at a time, in float64."""
    B, H, T, D = q.shape
    K, out = k.shape[1], torch.zeros(B, H, T, D, dtype=torch.float64)
    for b in range(B):
        for t, position in enumerate(q_positions[b].tolist()):
            seen = [s for s, p in enumerate(k_positions[b].tolist()) if 0 <= p <= position]
            for h in range(H if seen else 0):
                keys, values = k[b, h * K // H, seen].double(), v[b, h * K // H, seen].double()
                weights = torch.softmax(keys @ q[b, h, t].double() / math.sqrt(D), dim=0)
                out[b, h, t] = weights @ values
    return out.float()


def case(name: str, tests: str, q, k, v, q_positions, k_positions, **options) -> Case:
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "q_positions": torch.as_tensor(q_positions),
        "k_positions": torch.as_tensor(k_positions),
    }
    return Case(name, tests, inputs, oracle(*inputs.values()), **options)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=random)

    def qkv(B: int, H: int, K: int, T: int, S: int, D: int) -> tuple[torch.Tensor, ...]:
        return normal(B, H, T, D), normal(B, K, S, D), normal(B, K, S, D)

    yield case(
        "example",
        "the example of the statement",
        torch.tensor([[2.0, 0, 0, 0], [2.0, 0, 0, 0]]).reshape(1, 1, 2, 4),
        torch.tensor([[0.0, 0, 0, 0], [math.log(3), 0, 0, 0]]).reshape(1, 1, 2, 4),
        torch.tensor([[8.0, 0, 4, 0], [0.0, 8, 4, 0]]).reshape(1, 1, 2, 4),
        [[0, 1]],
        [[0, 1]],
    )
    yield case(
        "grouped-heads",
        "neighbouring query heads share a key/value head: 0, 0, 1, 1",
        torch.ones(1, 4, 1, 2),
        torch.tensor([[1.0, 0.0], [2.0, 0.0]]).reshape(1, 2, 1, 2),
        torch.tensor([[1.0, 2.0], [5.0, 6.0]]).reshape(1, 2, 1, 2),
        [[0]],
        [[0]],
    )
    yield case(
        "cached-keys",
        "two new queries see the cached keys before them: positions decide, not indices",
        *qkv(1, 2, 1, 2, 5, 4),
        [[3, 4]],
        [[0, 1, 2, 3, 4]],
    )
    yield case(
        "any-order",
        "keys may be stored in any order, and positions may have gaps",
        *qkv(1, 2, 1, 3, 4, 4),
        [[8, 2, 5]],
        [[5, 0, 8, 2]],
    )
    yield case(
        "own-positions",
        "each row of the batch has its own positions",
        *qkv(2, 2, 2, 2, 3, 4),
        [[1, 2], [2, 0]],
        [[0, 1, 2], [2, 0, 1]],
    )
    yield case(
        "left-padding",
        "keys at position -1 are visible to nobody",
        *qkv(2, 2, 1, 2, 4, 4),
        [[1, 3], [0, 1]],
        [[0, 1, 2, 3], [-1, -1, 0, 1]],
    )
    yield case(
        "blind-padding",
        "queries at position -1 see nothing and return zeros",
        *qkv(2, 2, 1, 3, 3, 4),
        [[0, 1, 2], [-1, -1, 0]],
        [[0, 1, 2], [-1, -1, 0]],
    )
    yield case(
        "blind-query",
        "a query returns zeros too when every key lies after it",
        *qkv(1, 2, 1, 3, 2, 4),
        [[-1, 3, 6]],
        [[4, 5]],
    )
    q, k, v = qkv(1, 3, 1, 4, 6, 16)
    yield case(
        "large-scores",
        "scores of several hundred do not overflow the exponential",
        20 * q,
        20 * k,
        v,
        [[2, 3, 4, 5]],
        [[0, 1, 2, 3, 4, 5]],
        tolerance=LARGE,
    )
    q, k, v = normal(2, 3, 4, 8), normal(2, 5, 2, 8), normal(2, 5, 2, 8)
    yield case(
        "transposed",
        "tensors need not be contiguous in memory: heads come from a transpose",
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        [[2, 3, 4], [1, 2, 3]],
        [[0, 1, 2, 3, 4], [-1, 0, 1, 2, 3]],
    )
    yield case(
        "random",
        "random values and positions, all sizes different",
        *qkv(2, 6, 3, 5, 7, 8),
        integers(-1, 9, 2, 5),
        integers(-1, 9, 2, 7),
    )
    yield case(
        "random-hidden",
        "other random values, drawn anew in every run",
        *qkv(3, 8, 2, 4, 9, 10),
        integers(-1, 12, 3, 4),
        integers(-1, 12, 3, 9),
        hidden=True,
    )
