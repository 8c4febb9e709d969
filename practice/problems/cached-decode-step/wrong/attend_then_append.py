"""Attend before append: your result equals the one where the new token does not see itself.

case: example
kind: value
"""

import torch


def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    group = q.shape[1] // k.shape[1]
    hidden = ((cache_positions < 0) | (cache_positions > positions))[:, None, None]
    scores = q @ k_cache.repeat_interleave(group, dim=1).mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)
    out = weights @ v_cache.repeat_interleave(group, dim=1)
    k_all, v_all = torch.cat([k_cache, k], dim=2), torch.cat([v_cache, v], dim=2)
    return out, k_all, v_all, torch.cat([cache_positions, positions], dim=1)
