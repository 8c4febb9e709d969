"""Backward of one block: its share of d_q, and its d_k and d_v, from global statistics."""

import torch


def block_backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    q_positions: torch.Tensor,
    k_positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What one block of keys contributes -> d_q (B, H, T, D); d_k, d_v (B, K, S, D)."""
    raise NotImplementedError("write block_backward here")
