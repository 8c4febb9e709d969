"""Overflow: exp of a score above 88 is inf in float32; subtract the largest score first.

case: large-scores
kind: nan
"""

import torch


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_positions: torch.Tensor,
    k_positions: torch.Tensor,
) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    q_pos, k_pos = q_positions[:, None, :, None], k_positions[:, None, None, :]
    hidden = (k_pos < 0) | (k_pos > q_pos)  # (B, 1, T, S)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.exp().masked_fill(hidden, 0)
    return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)
