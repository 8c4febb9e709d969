r"""Partial softmaxes and how to join them (chapter 3).

Attention over some of the keys gives `out`, normalised over those keys alone, and `lse`, the
logarithm of the sum it was normalised by, $\ell = \log \sum_j e^{s_j}$. Parts over disjoint keys
join exactly: $\ell = \log \sum_i e^{\ell_i}$ and $o = \sum_i e^{\ell_i - \ell} o_i$. The same
identity is inside FlashAttention (arXiv:2205.14135).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """Attention over some of the keys. A query that saw none has out 0 and lse minus infinity."""

    out: Tensor  # (B, H, T, D)
    lse: Tensor  # (B, H, T), natural logarithm


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in: float32, or float64 where the data is."""
    return torch.promote_types(dtype, torch.float32)


def empty(q: Tensor) -> Partial:
    """The partial result of queries q (B, H, T, D) that have seen no key yet."""
    out = torch.zeros_like(q, dtype=sum_dtype(q.dtype), memory_format=torch.contiguous_format)
    return Partial(out, out.new_full(q.shape[:-1], -torch.inf))


def merge(*parts: Partial) -> Partial:
    r"""Join parts over disjoint keys, in any order and grouping; exact for queries that saw none.

    Every `out` is (B, H, T, D) and every `lse` (B, H, T); sums are kept in float32 or wider. With
    $m = \max_i \ell_i$ no exponential exceeds 1, whatever the gap. A part that saw nothing counts
    with weight 0, whatever its `out` holds. Where all parts saw nothing, so did the result, and
    gradients are 0. Raises ValueError for parts that do not match.
    """
    _check(parts)
    dtype = sum_dtype(parts[0].out.dtype)
    lses = torch.stack([part.lse.to(dtype) for part in parts])
    top = lses.detach().amax(dim=0)
    top = top.masked_fill(top == -torch.inf, 0)  # minus infinity minus itself is not a number
    weights = (lses - top).exp()
    total = weights.sum(dim=0)
    is_blind = total == 0
    total = total.masked_fill(is_blind, 1)
    out = torch.zeros((), dtype=dtype, device=total.device)
    for part, weight in zip(parts, weights, strict=True):
        seen = part.out.to(dtype).masked_fill((weight == 0)[..., None], 0)
        out = out + seen * (weight / total)[..., None]
    return Partial(out, (top + total.log()).masked_fill(is_blind, -torch.inf))


def merge_into(total: Partial, part: Partial) -> None:
    r"""`merge` of two into the first, in place: one pass over the outputs, no gradient.

    `part.out` must be finite. With $w = e^{\ell_b - \ell}$ the new output is o_a + w (o_b - o_a).
    """
    joined = torch.logaddexp(total.lse, part.lse)
    share = (part.lse - joined.masked_fill(joined == -torch.inf, 0)).exp()
    total.out.lerp_(part.out.to(total.out.dtype), share[..., None].to(total.out.dtype))
    total.lse.copy_(joined)


def _check(parts: tuple[Partial, ...]) -> None:
    if not parts:
        raise ValueError("there is nothing to merge; give at least one part")
    shape = parts[0].out.shape
    for i, (out, lse) in enumerate(parts):
        if out.shape != shape or lse.shape != shape[:-1]:
            raise ValueError(
                f"part {i} has out {tuple(out.shape)} and lse {tuple(lse.shape)}; expected "
                f"{tuple(shape)} and {tuple(shape[:-1])}, as in part 0"
            )
