"""No eps: your result equals the one without eps, and a vector of zeros becomes NaN.

case: eps-inside-root
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True))).to(x.dtype) * weight
