"""Micro-batched gradients: a step cut into pieces, with the gradient of the whole."""

import torch


def accumulated_gradient(
    weight: torch.Tensor, microbatches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight (V, C), pairs of x (B, T, C) and targets (B, T) -> loss (), gradient (V, C)."""
    raise NotImplementedError("write accumulated_gradient here")
