"""Mean of the group: your d_k and d_v average over the query heads of a group; gradients add.

case: grouped
kind: value
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
    d_k = (d_scores.mT @ q).unflatten(1, (K, H // K)).mean(dim=2)
    d_v = (weights.mT @ d_out).unflatten(1, (K, H // K)).mean(dim=2)
    return d_q, d_k, d_v
