"""In place: writing the turned halves into x changes the caller's tensor.

case: example
kind: mutated
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    D = x.shape[-1]
    angles = (positions[..., None] * theta ** -(torch.arange(0, D, 2).float() / D))[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().clone().chunk(2, dim=-1)
    x[..., : D // 2] = first * cos - second * sin
    x[..., D // 2 :] = second * cos + first * sin
    return x
