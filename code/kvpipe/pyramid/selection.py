"""From scores to the tokens that stay, for every row and KV head on its own. Chapter 6."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """Where the kept tokens lie among those there were, and their positions: (B, K, n) each."""

    indices: Tensor
    positions: Tensor  # ascending; -1 (first) where a row keeps fewer than n


def in_window(positions: Tensor, last: Tensor, window: int) -> Tensor:
    """Which of `positions` (B, K, S) are among the `window` tokens up to `last` (B,)."""
    return (positions >= 0) & (positions > last[:, None, None] - window)


def select(scores: Tensor, positions: Tensor, last: Tensor, counts: Tensor, window: int) -> Kept:
    """The `counts` (B,) best tokens of every row and KV head, in the order of the text.

    `scores` and `positions` are (B, K, S), `last` (B,) the latest position of each row. The last
    `window` tokens of a row always stay and padding never does; among equal scores the earlier
    token stays. Raises ValueError where a count does not hold the window.
    """
    is_recent = in_window(positions, last, window)
    short = counts[:, None] < is_recent.sum(dim=2)
    if bool(short.any()):
        row = int(short.any(dim=1).nonzero()[0])
        raise ValueError(
            f"row {row} may keep {int(counts[row])} tokens, fewer than its window of {window}"
        )
    ranked = scores.masked_fill(is_recent, torch.inf).masked_fill(positions < 0, -torch.inf)
    n = min(int(counts.max()), int((positions >= 0).sum(dim=2).max()))
    indices = ranked.argsort(dim=2, descending=True, stable=True)[:, :, :n]
    is_over = torch.arange(n, device=counts.device) >= counts[:, None, None]
    kept = positions.gather(2, indices).masked_fill(is_over, -1)
    kept, order = kept.sort(dim=2, stable=True)
    return Kept(indices.gather(2, order), kept)


def take(x: Tensor, indices: Tensor) -> Tensor:
    """The tokens `indices` (B, K, n) of keys or values x (B, K, S, D): (B, K, n, D)."""
    return x.gather(2, indices[..., None].expand(-1, -1, -1, x.shape[-1]))
