"""Turned backwards: your result equals the one with the two signs of the sine exchanged.

case: example
kind: value
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    D = x.shape[-1]
    angles = (positions[..., None] * theta ** -(torch.arange(0, D, 2).float() / D))[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1).to(x.dtype)
