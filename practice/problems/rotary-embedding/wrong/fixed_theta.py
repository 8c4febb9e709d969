"""Theta fixed: your result equals the one with theta = 10,000 whatever the argument says.

case: theta
kind: value
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    D = x.shape[-1]
    angles = (positions[..., None] * 10_000.0 ** -(torch.arange(0, D, 2).float() / D))[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
