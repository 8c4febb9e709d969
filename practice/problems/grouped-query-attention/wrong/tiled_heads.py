"""Heads tiled: your result equals the one with key/value heads in the order 0, 1, 0, 1.

case: grouped-heads
kind: value
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
    k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    q_pos, k_pos = q_positions[:, None, :, None], k_positions[:, None, None, :]
    hidden = (k_pos < 0) | (k_pos > q_pos)  # (B, 1, T, S)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(hidden, 0) @ v
