"""One head for all: your result equals the one where all query heads read KV head 0.

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
    k, v = k[:, :1], v[:, :1]
    q_pos, k_pos = q_positions[:, None, :, None], k_positions[:, None, None, :]
    hidden = (k_pos < 0) | (k_pos > q_pos)  # (B, 1, T, S)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(hidden, 0) @ v
