r"""How much the last queries look at each key: the evidence for keeping it. Chapter 6.

$s_i = \sum_{j \in \mathrm{window}} \mathrm{softmax}(q_j K^\top / \sqrt D)_i$ per query head
(PyramidKV, arXiv:2406.02069, equations 2 and 3; SnapKV, arXiv:2404.14469), reduced over the heads
that share a KV head, then pooled over neighbours. Letters: B batch, H query heads, K KV heads, G
query heads per KV head, w queries, S keys, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kvpipe.attention import attention_weights

QUERY_BLOCK = 256  # queries scored at once, so that memory never grows with their square

GROUPS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda scores: scores.mean(dim=2),
    "max": lambda scores: scores.amax(dim=2),
    "sum": lambda scores: scores.sum(dim=2),
}
POOLS = ("average", "max")


def query_scores(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    window: int | None = None,
    group: str = "mean",
    average: bool = False,
) -> Tensor:
    """Attention that each key receives from all queries q, float32 (B, K, S).

    q is (B, H, w, D) at `q_positions` (B, w); k is (B, K, S, D) at `k_positions`, (B, S) or
    (B, K, S), `window` the layer's sliding window. Sums over the queries, or averages over those
    that are no padding; then reduces the G heads of a KV head by `group`: mean, max or sum. Memory
    is O(w S), in blocks of 256 queries. Raises ValueError if a score is not a number.
    """
    total = sum(
        _attention_received(q_part, k, positions, k_positions, window)
        for q_part, positions in zip(
            q.split(QUERY_BLOCK, dim=2), q_positions.split(QUERY_BLOCK, dim=1), strict=True
        )
    )
    if average:
        n_queries = (q_positions >= 0).sum(dim=1).clamp(min=1)
        total = total / n_queries[:, None, None, None]
    scores = GROUPS[group](total)
    if bool(scores.isnan().any()):
        raise ValueError(
            "attention scores are NaN, so no token can be chosen by them; the keys or queries hold "
            "NaN or infinity: check the weights, or use a wider number format than "
            f"{q.dtype}"
        )
    return scores


def _attention_received(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, window: int | None
) -> Tensor:
    """Sum over the queries of one block: (B, K, G, S)."""
    B, H, w, D = q.shape
    K, S = k.shape[1:3]
    G = H // K
    # All queries of a KV head at once, so that its keys need no copy per query head.
    queries = q.reshape(B, K, G * w, D)
    weights = attention_weights(queries, k, q_positions.repeat(1, G), k_positions, window)
    return weights.view(B, K, G, w, S).sum(dim=3)


def pool(
    scores: Tensor, is_history: Tensor, kernel: int, kind: str = "max", edge_bias: bool = False
) -> Tensor:
    """Each score becomes the maximum or average of `kernel` neighbours: (B, K, S) -> (B, K, S).

    Only keys that `is_history` (B, K, S) marks take part: padding and the window lend nothing to
    their neighbours and come out as 0. An average divides by the neighbours there are, so that the
    first and last keys are not at a disadvantage. With `edge_bias` it divides by `kernel`
    everywhere, as kvpress and the authors' average do. Raises ValueError for an even kernel, which
    would shift the scores by one.
    """
    check_pool(kernel, kind)
    if kernel == 1:
        return scores.masked_fill(~is_history, 0)
    if kind == "max":
        hidden = scores.masked_fill(~is_history, -torch.inf)
        pooled = F.max_pool1d(hidden, kernel, stride=1, padding=kernel // 2)
        return pooled.masked_fill(~is_history, 0)
    total = _sum_of_neighbours(scores.masked_fill(~is_history, 0), kernel)
    n = kernel if edge_bias else _sum_of_neighbours(is_history.to(scores.dtype), kernel)
    return (total / n).masked_fill(~is_history, 0)


def check_pool(kernel: int, kind: str) -> None:
    """Raise ValueError for a kernel that is even or below 1, or an unknown kind of pooling."""
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(
            f"a pooling kernel of {kernel} has no middle; use an odd number (1: no pooling)"
        )
    if kind not in POOLS:
        raise ValueError(f"pooling {kind!r} is unknown; there are {', '.join(POOLS)}")


def _sum_of_neighbours(x: Tensor, kernel: int) -> Tensor:
    return F.avg_pool1d(x, kernel, stride=1, padding=kernel // 2) * kernel
