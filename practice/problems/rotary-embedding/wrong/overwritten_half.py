"""Half overwritten: your result equals the one whose second half uses the turned first half.

case: example
kind: value
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    D = x.shape[-1]
    angles = (positions[..., None] * theta ** -(torch.arange(0, D, 2).float() / D))[:, None]
    cos, sin = angles.cos(), angles.sin()
    y = x.clone().float()
    first, second = y[..., : D // 2], y[..., D // 2 :]
    first.copy_(first * cos - second * sin)
    second.copy_(second * cos + first * sin)
    return y.to(x.dtype)
