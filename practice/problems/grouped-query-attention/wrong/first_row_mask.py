"""One mask for all: your result equals the one that uses row 0's positions for every row.

case: own-positions
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
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    q_pos, k_pos = q_positions[0, :, None], k_positions[0, None, :]
    hidden = (k_pos < 0) | (k_pos > q_pos)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(hidden, 0) @ v
