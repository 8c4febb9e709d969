"""Result left in float32: the result must have the dtype of x; cast back with .to(x.dtype).

case: float16-large
kind: dtype
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
