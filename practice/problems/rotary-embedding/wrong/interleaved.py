"""Neighbours paired: your result equals the one with pairs x[2i], x[2i+1]; use x[i], x[i+D/2].

case: example
kind: value
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    D = x.shape[-1]
    angles = (positions[..., None] * theta ** -(torch.arange(0, D, 2).float() / D))[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float()[..., 0::2], x.float()[..., 1::2]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.flatten(-2).to(x.dtype)
