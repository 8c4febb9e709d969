"""First dimension: your result equals the one with the mean over dim=0; the channels are dim=-1.

case: example
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=0, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight
