r"""One matrix product, on the fastest kernel at hand. Chapter 1.

On a CPU, `torch.nn.functional.linear` in float32 goes to MKL; on processors of other makers than
Intel, oneDNN (also inside torch) is up to three times faster for one row and about twice for
many. oneDNN has no gradient here, so the plain path serves training and every other device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """y = x W^T + b with W of shape (out, in), as in `torch.nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in) times weight (out, in) transposed, plus bias (out,): (..., out)."""
    if _onednn is not None and _fits_onednn(x, weight):
        return _onednn(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _fits_onednn(x: Tensor, weight: Tensor) -> bool:
    is_float32_on_cpu = x.dtype is weight.dtype is torch.float32 and x.device.type == "cpu"
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return is_float32_on_cpu and not needs_grad and x.numel() > 0


def _find_onednn():
    """torch's private oneDNN product, or None where this build does not have it."""
    try:
        return torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError):
        return None


_onednn = _find_onednn()
