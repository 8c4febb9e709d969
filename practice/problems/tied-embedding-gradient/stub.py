"""Tied-embedding gradient: two stages with a copy each, and the sum that keeps them equal."""

import torch


def tied_gradients(
    tokens: torch.Tensor,
    targets: torch.Tensor,
    embedding: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens (B, T), embedding (V, C) -> grad_h (B, T, C); of_first, of_last, tied (V, C)."""
    raise NotImplementedError("write tied_gradients here")
