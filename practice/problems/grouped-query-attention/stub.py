"""Grouped-query attention with a mask from positions."""

import torch


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_positions: torch.Tensor,
    k_positions: torch.Tensor,
) -> torch.Tensor:
    """q (B, H, T, D), k and v (B, K, S, D), positions (B, T) and (B, S) -> (B, H, T, D)."""
    raise NotImplementedError("write attention here")
