"""`repeat_interleave` gives each key/value head to H/K neighbouring query heads: 0, 0, 0, 1, 1, 1.

The mask compares every query position with every key position by broadcasting, so cached keys,
left padding and shuffled keys need no code of their own. Hidden scores become -inf, which softmax
turns into weight 0. A query that sees nothing has only -inf, and its softmax is NaN: the second
`masked_fill` writes the zeros that the rule asks for. `softmax` subtracts the largest score itself,
so that large scores do not overflow.
"""

import torch


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_positions: torch.Tensor,
    k_positions: torch.Tensor,
) -> torch.Tensor:
    """q (B, H, T, D), k and v (B, K, S, D), positions (B, T) and (B, S) -> (B, H, T, D)."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    q_pos, k_pos = q_positions[:, None, :, None], k_positions[:, None, None, :]
    hidden = (k_pos < 0) | (k_pos > q_pos)  # (B, 1, T, S)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(hidden, 0) @ v
