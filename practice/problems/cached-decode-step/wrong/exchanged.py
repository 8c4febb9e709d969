"""Keys and values exchanged: your caches are swapped; keys come first, in the result too.

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
    k_all, v_all = torch.cat([k_cache, k], dim=2), torch.cat([v_cache, v], dim=2)
    all_positions = torch.cat([cache_positions, positions], dim=1)
    group = q.shape[1] // k.shape[1]
    hidden = ((all_positions < 0) | (all_positions > positions))[:, None, None]  # (B, 1, 1, S+1)
    scores = q @ k_all.repeat_interleave(group, dim=1).mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)
    return weights @ v_all.repeat_interleave(group, dim=1), v_all, k_all, all_positions
