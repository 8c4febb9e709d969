"""The mean runs over the last dimension only, so every token is normalised on its own.

`rsqrt(mean + eps)` has eps inside the root: a vector of zeros stays zero instead of becoming NaN.
The squares are taken in float32. In float16 a value of 300 would already square to infinity.
The cast back comes before the weight, as in the Llama code, so that the result keeps x's dtype.
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x (..., C), weight (C,) -> same shape and dtype as x."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight
