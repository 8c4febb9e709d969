"""Cases of the cached decode step; the oracle collects each row's visible tokens in a list."""

import math

import torch

from kvpipe_practice.case import Case, Tolerance

RESULT = ("out", "k_cache", "v_cache", "cache_positions")
TOLERANCE = Tolerance(
    2e-5,
    why="float32 keeps 7 digits; a score of size 10 in the exponent costs one, the sums another",
)


def oracle(q, k, v, positions, k_cache, v_cache, cache_positions) -> tuple:
    """No mask and no concatenation to attend to: one row and head at a time, in float64."""
    B, H, _, D = q.shape
    K, S = k_cache.shape[1:3]
    out = torch.zeros(B, H, 1, D, dtype=torch.float64)
    for b in range(B):
        now = int(positions[b, 0])
        past = [s for s in range(S) if 0 <= int(cache_positions[b, s]) <= now]
        for h in range(H if now >= 0 else 0):
            kv = h * K // H
            keys = torch.stack([*(k_cache[b, kv, s] for s in past), k[b, kv, 0]]).double()
            values = torch.stack([*(v_cache[b, kv, s] for s in past), v[b, kv, 0]]).double()
            out[b, h, 0] = torch.softmax(keys @ q[b, h, 0].double() / math.sqrt(D), 0) @ values
    grown = [torch.empty(B, K, S + 1, D), torch.empty(B, K, S + 1, D)]
    for whole, cached, new in zip(grown, (k_cache, v_cache), (k, v), strict=True):
        whole[:, :, :S], whole[:, :, S:] = cached, new
    all_positions = torch.empty(B, S + 1, dtype=torch.int64)
    all_positions[:, :S], all_positions[:, S:] = cache_positions, positions
    return out.float(), *grown, all_positions


def case(name: str, tests: str, new: tuple, positions, cache: tuple, cached, **options) -> Case:
    B = len(positions)
    inputs = {
        **dict(zip(("q", "k", "v"), new, strict=True)),
        "positions": torch.as_tensor(positions),
        **dict(zip(("k_cache", "v_cache"), cache, strict=True)),
        "cache_positions": torch.as_tensor(cached, dtype=torch.int64).reshape(B, -1),
    }
    return Case(name, tests, inputs, oracle(*inputs.values()), **options)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=random)

    def token(B: int, H: int, K: int, D: int) -> tuple[torch.Tensor, ...]:
        return normal(B, H, 1, D), normal(B, K, 1, D), normal(B, K, 1, D)

    def cache(B: int, K: int, S: int, D: int) -> tuple[torch.Tensor, ...]:
        return normal(B, K, S, D), normal(B, K, S, D)

    yield case(
        "example",
        "the example of the statement",
        (
            torch.tensor([2.0, 0, 0, 0]).reshape(1, 1, 1, 4),
            torch.tensor([math.log(5), 0, 0, 0]).reshape(1, 1, 1, 4),
            torch.tensor([0.0, 0, 4, 8]).reshape(1, 1, 1, 4),
        ),
        [[2]],
        (
            torch.tensor([[0.0, 0, 0, 0], [math.log(2), 0, 0, 0]]).reshape(1, 1, 2, 4),
            torch.tensor([[8.0, 0, 4, 0], [0.0, 8, 4, 0]]).reshape(1, 1, 2, 4),
        ),
        [[0, 1]],
    )
    yield case(
        "first-token",
        "with an empty cache the token sees only itself and returns its own value",
        (
            torch.ones(1, 1, 1, 2),
            torch.ones(1, 1, 1, 2),
            torch.tensor([7.0, -3.0]).reshape(1, 1, 1, 2),
        ),
        [[0]],
        (torch.empty(1, 1, 0, 2), torch.empty(1, 1, 0, 2)),
        [],
    )
    yield case(
        "grouped-heads",
        "neighbouring query heads share a key/value head, and the cache keeps only K heads",
        token(1, 4, 2, 2),
        [[1]],
        cache(1, 2, 1, 2),
        [[0]],
    )
    yield case(
        "left-padding",
        "rows of different length: padding stays in the cache at -1 and is never seen",
        token(2, 2, 1, 4),
        [[2], [1]],
        cache(2, 1, 3, 4),
        [[-1, 0, 1], [-1, -1, 0]],
    )
    yield case(
        "later-keys",
        "a cached key with a later position is hidden, a rejected draft for example",
        token(1, 2, 1, 4),
        [[5]],
        cache(1, 1, 4, 4),
        [[4, 5, 6, 7]],
    )
    yield case(
        "stopped-row",
        "a row that has stopped gets a token at position -1 and returns zeros",
        token(3, 2, 1, 4),
        [[2], [-1], [0]],
        cache(3, 1, 2, 4),
        [[0, 1], [0, 1], [-1, -1]],
    )
    yield case(
        "gaps",
        "cached positions may have gaps and be in any order",
        token(1, 2, 2, 4),
        [[9]],
        cache(1, 2, 4, 4),
        [[7, 0, 8, 3]],
    )
    yield case(
        "random",
        "random values and positions, all sizes different",
        token(2, 6, 3, 8),
        integers(-1, 9, 2, 1),
        cache(2, 3, 7, 8),
        integers(-1, 9, 2, 7),
    )
    yield case(
        "random-hidden",
        "other random values, drawn anew in every run",
        token(3, 8, 2, 10),
        integers(-1, 12, 3, 1),
        cache(3, 2, 9, 10),
        integers(-1, 12, 3, 9),
        hidden=True,
    )
