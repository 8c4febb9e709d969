"""Mean over everything: your result equals the one with a single mean over all of x; each vector
has its own.

case: no-mean-subtracted
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean() + eps)).to(x.dtype) * weight
