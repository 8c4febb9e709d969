"""Append first, then attend: the new token sees itself, and an empty cache needs no special case.

The cache keeps K heads. They are repeated for the computation only; storing the repeated heads
would multiply the memory by H/K and give up what grouped heads are for. `torch.cat` makes new
tensors, so the old cache stays as it was. It also copies the whole cache in every step: a real
cache writes into room that it has reserved.

The mask compares positions. A decode step needs no causal triangle, but it does need a mask: rows
are padded, and a row that has stopped is blind.
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
    """One token per row -> out (B, H, 1, D), k and v (B, K, S + 1, D), positions (B, S + 1)."""
    k_all, v_all = torch.cat([k_cache, k], dim=2), torch.cat([v_cache, v], dim=2)
    all_positions = torch.cat([cache_positions, positions], dim=1)
    group = q.shape[1] // k.shape[1]
    hidden = ((all_positions < 0) | (all_positions > positions))[:, None, None]  # (B, 1, 1, S+1)
    scores = q @ k_all.repeat_interleave(group, dim=1).mT / q.shape[-1] ** 0.5
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)
    return weights @ v_all.repeat_interleave(group, dim=1), k_all, v_all, all_positions
