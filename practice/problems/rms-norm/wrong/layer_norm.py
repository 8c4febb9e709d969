"""LayerNorm: your result equals the one with the mean subtracted first; RMSNorm keeps the mean.

case: example
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float() - x.float().mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight
