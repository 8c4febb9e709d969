"""In place: multiplying x itself changes the caller's tensor, which the residual still needs.

case: example
kind: mutated
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    scale = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + eps)
    return x.mul_(scale.to(x.dtype)).mul_(weight)
