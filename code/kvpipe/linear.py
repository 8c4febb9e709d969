r"""One matrix product, on the fastest kernel at hand. Chapter 1.

Decoding one token multiplies every weight once, so its speed is the speed of reading memory. The
usual product (`torch.nn.functional.linear`, MKL inside) reads a matrix with one thread when x has
one row, and is slow altogether on processors of other makers than Intel. Two other products that
torch ships come closer to what the memory gives:

- for one row, $y = \sum_i x_i w_i$ with $w_i$ the i-th column: the weighted sum of table rows that
  `embedding_bag` computes, if the matrix is stored column after column (`lay_out`);
- for several rows, oneDNN in float32.

Neither has a gradient here. Training and every other device or layout take the usual product.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
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
    if _is_plain(x, weight) and not _needs_grad(x, weight):
        is_by_columns = weight.stride() == (1, weight.shape[0])
        if is_by_columns and x.numel() == x.shape[-1] and _is_x86():
            return _weighted_columns(x, weight, bias)
        # A matrix with gaps in it would meet oneDNN's reference kernel, hundreds of times slower.
        is_dense = is_by_columns or weight.is_contiguous()
        if is_dense and x.dtype is torch.float32 and _onednn is not None:
            return _onednn(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def together(x: Tensor, *layers: Linear) -> list[Tensor]:
    """What each layer makes of x: one product if `lay_out` put their weights side by side."""
    weights = [layer.weight for layer in layers]
    joint = None if _needs_grad(x, *weights) else _joint(weights)
    if joint is None:
        return [layer(x) for layer in layers]
    parts = linear(x, joint).split([len(weight) for weight in weights], dim=-1)
    pairs = zip(parts, layers, strict=True)
    return [part if layer.bias is None else part + layer.bias for part, layer in pairs]


def lay_out(tensors: dict[str, Tensor], groups: Iterable[Sequence[str]]) -> None:
    """Replace the named matrices by equal ones in one stretch of memory, column after column.

    Each column of a group's first matrix is followed by that column of its second, and so on.
    Matrices keep their places where `linear` would gain nothing from the move.
    """
    groups = [names for names in groups if _is_x86() and tensors[names[0]].is_cpu]
    memory = _memory(sum(tensors[name].nbytes for names in groups for name in names))
    for names in groups:
        stacked = torch.cat([tensors[name] for name in names])
        piece, memory = memory[: stacked.nbytes], memory[stacked.nbytes :]
        columns = piece.view(stacked.dtype).view(stacked.shape[1], -1).copy_(stacked.t())
        sizes = [len(tensors[name]) for name in names]
        tensors.update(zip(names, columns.t().split(sizes), strict=True))


def _memory(n_bytes: int) -> Tensor:
    """Fresh bytes, in huge pages where the system has them: fewer page tables to read."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(n_bytes, dtype=torch.uint8)
    fresh = mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    fresh.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(fresh, dtype=torch.uint8)


def _joint(weights: Sequence[Tensor]) -> Tensor | None:
    """The one matrix of which `weights` are the rows, top to bottom, as `lay_out` stores it."""
    n_out, n_in = sum(len(weight) for weight in weights), weights[0].shape[1]
    expected = weights[0].data_ptr()
    for weight in weights:
        if weight.stride() != (1, n_out) or weight.data_ptr() != expected:
            return None
        expected += len(weight) * weight.element_size()
    return weights[0].as_strided((n_out, n_in), (1, n_out))


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    """Two tensors that fit, on the CPU, in one dtype, with something in them."""
    is_same_kind = x.is_cpu and weight.is_cpu and x.dtype is weight.dtype
    return is_same_kind and x.shape[-1] == weight.shape[1] and x.numel() > 0


def _needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _weighted_columns(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product for a single row: columns are read once, in order, by all threads.

    Every column is cut into equal parts, and a bag sums one part of all columns: one bag each.
    """
    n_out, n_in = weight.shape
    parts = _n_parts(n_out, torch.get_num_threads())
    table = weight.t().view(n_in * parts, n_out // parts)
    factors = torch.cat((x.reshape(n_in),) * parts)
    rows, starts = _bags(n_in, parts)
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
