r"""One matrix product, on the fastest kernel at hand. Chapter 1.

Decoding one token multiplies every weight once, so its speed is the speed of reading memory. The
usual product (`torch.nn.functional.linear`, MKL inside) reads a matrix with one thread when x has
one row, and is slow altogether on processors of other makers than Intel. Two other products that
torch ships come closer to what the memory gives:

- for one row, $y = \sum_i x_i w_i$ with $w_i$ the i-th column: the weighted sum of table rows that
  `embedding_bag` computes, if the matrix is stored column after column (`by_columns`);
- for several rows, oneDNN in float32.

Neither has a gradient here. Training and every other device or layout take the usual product.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """y = x W^T + b with W of shape (out, in), as in `torch.nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in) times weight (out, in) transposed, plus bias (out,): (..., out)."""
    if _is_plain(x, weight):
        if x.numel() == x.shape[-1] and weight.mT.is_contiguous() and _is_x86():
            return _weighted_columns(x, weight, bias)
        if x.dtype is torch.float32 and _onednn is not None:
            return _onednn(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    """Two tensors that fit, on the CPU, in one dtype, something in them, no gradient wanted."""
    is_same_kind = x.is_cpu and weight.is_cpu and x.dtype is weight.dtype
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return is_same_kind and x.shape[-1] == weight.shape[1] and x.numel() > 0 and not needs_grad


def by_columns(weight: Tensor) -> Tensor:
    """The same matrix, stored column after column where `linear` gains from that."""
    return weight.t().contiguous().t() if weight.is_cpu and _is_x86() else weight


def _weighted_columns(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product for a single row: columns are read once, in order, by all threads.

    Every column is cut into equal parts, and a bag sums one part of all columns: one bag each.
    """
    n_out, n_in = weight.shape
    rows, starts = _bags(n_in, parts := _n_parts(n_out, torch.get_num_threads()))
    table = weight.mT.view(n_in * parts, n_out // parts)
    factors = x.reshape(1, n_in).expand(parts, n_in).reshape(-1)
    y = torch.embedding_bag(table, rows, starts, mode=0, per_sample_weights=factors)[0]
    y = y.view(*x.shape[:-1], n_out)
    return y if bias is None else y + bias


@lru_cache
def _n_parts(n_out: int, n_threads: int) -> int:
    return max(parts for parts in range(1, n_threads + 1) if n_out % parts == 0)


@lru_cache
def _bags(n_in: int, parts: int) -> tuple[Tensor, Tensor]:
    """Which table rows each bag sums, bag after bag, and where in that list each bag starts."""
    rows = torch.arange(n_in * parts, dtype=torch.int32).view(n_in, parts).T.flatten()
    return rows, torch.arange(0, n_in * parts, n_in, dtype=torch.int32)


@lru_cache
def _is_x86() -> bool:
    """Elsewhere `embedding_bag` has no vectorised kernel."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _find_onednn():
    """torch's private oneDNN product, or None where this build does not have it."""
    try:
        return torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError):
        return None


_onednn = _find_onednn()
