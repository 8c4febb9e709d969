"""Sum instead of mean: your result equals the one divided by the Euclidean norm; take the mean.

case: example
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight
