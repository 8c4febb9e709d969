"""Rebuild the weights of the whole softmax from this block's scores, then the usual chain rule.

The softmax couples all keys of a row, yet only through one number: the mean of dP weighted by P,
over all keys, which equals the dot product of dO and O. That is why a block can be differentiated
alone. With a log-sum-exp of -inf the subtraction would give +inf or NaN, so it is replaced before,
and the weights are masked after.
"""

import torch


def block_backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    q_positions: torch.Tensor,
    k_positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What one block of keys contributes -> d_q (B, H, T, D); d_k, d_v (B, K, S, D)."""
    H, K, D = q.shape[1], k.shape[1], q.shape[3]
    k_wide = k.repeat_interleave(H // K, dim=1)
    v_wide = v.repeat_interleave(H // K, dim=1)
    scores = q @ k_wide.mT / D**0.5
    seen = (k_positions >= 0) & (k_positions <= q_positions[:, None])
    total = lse.masked_fill(lse == -torch.inf, 0)
    weights = torch.exp(scores - total[..., None]).masked_fill(~seen, 0)
    shift = (d_out * out).sum(dim=-1, keepdim=True)
    d_scores = weights * (d_out @ v_wide.mT - shift) / D**0.5
    d_q = d_scores @ k_wide
    d_k = (d_scores.mT @ q).unflatten(1, (K, H // K)).sum(dim=2)
    d_v = (weights.mT @ d_out).unflatten(1, (K, H // K)).sum(dim=2)
    return d_q, d_k, d_v
