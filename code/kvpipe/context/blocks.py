r"""Attention of a block of queries to a block of keys, its log-sum-exp, and back (chapter 3).

Forward: $s = qk^\top/\sqrt{D}$, $\ell = \log\sum_j e^{s_j}$, $o = \sum_j e^{s_j - \ell} v_j$.
Backward of one block of several needs what all blocks gave together, the final $o$ and $\ell$:
$P = e^{s - \ell}$, $\delta = \mathrm{rowsum}(dO \circ O)$, $dS = P \circ (dO\,V^\top - \delta)$,
$dV = P^\top dO$, $dQ = dS\,K/\sqrt{D}$, $dK = dS^\top Q/\sqrt{D}$ (arXiv:2205.14135, appendix B).

Letters: B batch, T queries, S keys, H query heads, K KV heads, D head size, G = H/K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvpipe.context.merge import Partial, sum_dtype

Grads = tuple[Tensor, Tensor, Tensor]  # dq (B, H, T, D), dk and dv (B, K, S, D)


def block_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Partial:
    """Attention over the keys of this block only, q (B, H, T, D), k and v (B, K, S, D).

    `mask` (B, 1 or H, T, S) says what is visible; `causal` that row i sees keys 0..i (then T = S).
    Uses torch's fused kernel where it has one that gives the log-sum-exp, on CPUs. What that
    kernel says of a query that sees nothing (0) is replaced by what is true.
    """
    if not _has_kernel(q, k):
        return plain_forward(q, k, v, mask, causal)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = fused(q, k, v, 0.0, causal, attn_mask=_additive(mask, q.dtype))
    if mask is None:
        return Partial(out, lse)
    is_blind = ~mask.any(dim=-1)
    return Partial(out.masked_fill(is_blind[..., None], 0), lse.masked_fill(is_blind, -torch.inf))


def block_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Partial,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Grads:
    """What this block adds to dq, dk and dv, where `total` is the result over all keys."""
    if not _has_kernel(q, k):
        return plain_backward(d_out, q, k, v, total, mask, causal)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, lse = total.out.to(q.dtype), _finite(total.lse)
    additive = _additive(mask, q.dtype)
    return fused(d_out, q, k, v, out, lse, 0.0, causal, attn_mask=additive)


def plain_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Partial:
    """`block_forward` as the formulas say it, on any device; holds all scores at once."""
    group = q.shape[1] // k.shape[1]
    v = v.to(sum_dtype(v.dtype)).repeat_interleave(group, dim=1)
    scores = _scores(q, k, mask, causal)
    lse = scores.logsumexp(dim=-1)
    weights = (scores - _finite(lse)[..., None]).exp()
    return Partial((weights @ v).to(q.dtype), lse)


def plain_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Partial,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Grads:
    """`block_backward` as the formulas say it, on any device; holds all scores at once."""
    group, scale, dtype = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5, sum_dtype(q.dtype)
    d_out, out = d_out.to(dtype), total.out.to(dtype)
    keys, values = (x.to(dtype).repeat_interleave(group, dim=1) for x in (k, v))
    weights = (_scores(q, k, mask, causal) - _finite(total.lse)[..., None]).exp()
    delta = (d_out * out).sum(dim=-1, keepdim=True)
    d_scores = weights * (d_out @ values.mT - delta) * scale
    d_k, d_v = d_scores.mT @ q.to(dtype), weights.mT @ d_out
    return d_scores @ keys, _sum_groups(d_k, group), _sum_groups(d_v, group)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    dtype = sum_dtype(q.dtype)
    keys = k.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q.to(dtype) @ keys.mT * q.shape[-1] ** -0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def _sum_groups(x: Tensor, group: int) -> Tensor:
    """Gradients per query head (B, H, S, D) to gradients per KV head (B, K, S, D)."""
    return x.unflatten(1, (-1, group)).sum(dim=2)


def _finite(lse: Tensor) -> Tensor:
    """Anything finite will do for a query that sees nothing: its weights are 0 by the mask."""
    return lse.masked_fill(lse == -torch.inf, 0)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None:
        return None
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def _has_kernel(q: Tensor, k: Tensor) -> bool:
    return q.device.type == "cpu" and k.shape[2] > 0 and q.shape[2] > 0
