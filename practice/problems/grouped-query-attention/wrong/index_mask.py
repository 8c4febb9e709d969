"""Indices for positions: your result equals the one where query t sees keys 0 to t.

case: cached-keys
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
    T, S = q.shape[2], k.shape[2]
    hidden = torch.ones(T, S, dtype=torch.bool).triu(diagonal=1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(hidden, 0) @ v
