"""Eps outside the root: your result equals the one with eps added to the root instead of to the
mean.

case: eps-inside-root
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    root = wide.square().mean(dim=-1, keepdim=True).sqrt() + eps
    return (wide / root).to(x.dtype) * weight
