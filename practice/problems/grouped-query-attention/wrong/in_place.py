"""In place: your function changed the caller's tensors; an operator such as /= does; make new ones.

case: example
kind: mutated
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
    q /= q.shape[-1] ** 0.5
    scores = q @ k.mT
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(hidden, 0) @ v
