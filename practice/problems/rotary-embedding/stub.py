"""Rotary embedding: turn each pair of numbers of a head by an angle that grows with position."""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """x (B, H, T, D), positions (B, T) -> same shape and dtype as x."""
    raise NotImplementedError("write rotate here")
