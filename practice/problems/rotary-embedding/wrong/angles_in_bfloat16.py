"""Angles in the dtype of x: your result equals the one with angles of 8 bits; use float32.

case: bfloat16
kind: value
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    D = x.shape[-1]
    frequencies = (theta ** -(torch.arange(0, D, 2).float() / D)).to(x.dtype)
    angles = (positions.to(x.dtype)[..., None] * frequencies)[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
