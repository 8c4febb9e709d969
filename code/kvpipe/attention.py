r"""Attention whose mask is a statement about positions. Chapter 1.

$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}(QK^\top/\sqrt{D})\,V$ (Vaswani et al. 2017,
equation 1), where a query at position p sees a key at position s when 0 <= s <= p and, with a
sliding window w, p - s < w. Padding sits at position -1: nobody sees it and it sees nobody.

Letters: B batch, T queries, S keys, H query heads, K KV heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def visible(q_positions: Tensor, k_positions: Tensor, window: int | None = None) -> Tensor:
    """Which query may see which key.

    `q_positions` is (B, T); `k_positions` is (B, S), or (B, K, S) where KV heads keep different
    tokens. Returns booleans of shape (B, 1, T, S) or (B, K, T, S).
    """
    q = q_positions[:, None, :, None]
    k = (k_positions[:, None] if k_positions.ndim == 2 else k_positions)[:, :, None]
    seen = (k >= 0) & (k <= q)
    return seen if window is None else seen & (q - k < window)


def attention_weights(
    q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, window: int | None = None
) -> Tensor:
    """The softmax weights themselves, float32 (B, H, T, S): for looking at, not for speed.

    Arguments as in `attention`. Rows sum to 1; a query that sees nothing has a row of zeros.
    """
    group = q.shape[1] // k.shape[1]
    scores = q.float() @ k.float().repeat_interleave(group, dim=1).mT / q.shape[-1] ** 0.5
    mask = visible(q_positions, k_positions, window)
    mask = mask if mask.shape[1] == 1 else mask.repeat_interleave(group, dim=1)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    window: int | None = None,
) -> Tensor:
    """Softmax attention over the visible keys; a query that sees nothing returns zeros.

    q is (B, H, T, D), k and v are (B, K, S, D) with H a multiple of K; query heads
    [i*H/K, (i+1)*H/K) read KV head i (GQA, Ainslie et al. 2023). Returns (B, H, T, D).
    The mask is left out where the positions prove that it would hide nothing, or exactly the
    keys after each query.
    """
    if _sees_everything(q_positions, k_positions, window):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    if _is_plain_causal(q_positions, k_positions, window):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mask = visible(q_positions, k_positions, window)
    if mask.shape[1] > 1:
        mask = mask.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    blind = ~mask.any(dim=-1, keepdim=True)
    # A blind row may look at everything, so that its softmax and gradient stay finite.
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | blind, enable_gqa=True)
    return out.masked_fill(blind, 0)


def _sees_everything(q_positions: Tensor, k_positions: Tensor, window: int | None) -> bool:
    """One query per row (a decode step) that sees every key there is."""
    return q_positions.shape[1] == 1 and bool(visible(q_positions, k_positions, window).all())


def _is_plain_causal(q_positions: Tensor, k_positions: Tensor, window: int | None) -> bool:
    """Queries and keys are the same unpadded tokens, in order, all inside the window."""
    if q_positions.shape != k_positions.shape:
        return False
    first, last = q_positions[:, 0], q_positions[:, -1]
    is_same = q_positions is k_positions or bool((q_positions == k_positions).all())
    is_ordered = is_same and bool((q_positions.diff() > 0).all() and (first >= 0).all())
    return is_ordered and (window is None or bool((last - first < window).all()))
