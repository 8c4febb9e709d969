"""What training minimises, in a form that can be computed part by part (chapter 2).

A mean over parts of unequal size is not the mean of their means. So a part's loss is a sum over
its targets, and the runtime divides every part by the number of targets in the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a target that does not count, as in torch.nn.functional.cross_entropy

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, T, V), targets (B, T) -> sum


def summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    r"""$\sum -\log p(\mathrm{target})$ over the targets that count, in float32 at least."""
    logits = logits if logits.dtype is torch.float64 else logits.float()
    flat = logits.flatten(0, 1), targets.flatten()
    return F.cross_entropy(*flat, reduction="sum", ignore_index=IGNORED)


def next_tokens(tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """The target of every token: the one after it; none for the last and for padding."""
    targets = torch.full_like(tokens, IGNORED)
    targets[:, :-1] = tokens[:, 1:]
    return targets if positions is None else targets.masked_fill(positions < 0, IGNORED)


def n_targets(targets: Tensor) -> int:
    """How many targets count; ValueError if none does, because the mean would be 0 / 0."""
    n = int((targets != IGNORED).sum())
    if n == 0:
        raise ValueError(f"none of the {targets.numel()} targets counts (all are {IGNORED})")
    return n
