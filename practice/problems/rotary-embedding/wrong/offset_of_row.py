"""Consecutive positions: your result equals the one that counts on from the row's first.

case: gaps
kind: value
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    T, D = x.shape[-2:]
    positions = positions[:, :1] + torch.arange(T)
    angles = (positions[..., None] * theta ** -(torch.arange(0, D, 2).float() / D))[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
