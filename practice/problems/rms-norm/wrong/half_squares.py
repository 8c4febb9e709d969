"""Squares in the dtype of x: your result equals the one whose squares overflow float16; use
x.float().

case: float16-large
kind: value
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight
