"""The memory of one layer: what was kept, then what came since. Chapter 6."""

from __future__ import annotations

import torch
from torch import Tensor

from kvpipe.cache import Seen
from kvpipe.pyramid.quantize import Quantized, dequantize, quantize


class LayerStore:
    """Keys, values and positions of one layer; in `bits` bits what `replace` puts there.

    Positions are (B, S) while all KV heads hold the same tokens, then (B, K, S).
    """

    def __init__(self, bits: int | None = None) -> None:
        self.bits = bits
        self.packed: tuple[Quantized, Quantized] | None = None
        self.n_packed = 0  # tokens in `packed`; the buffers hold those after them
        self.length = 0  # tokens held in all, padding included
        self._k: Tensor | None = None  # (B, K, capacity, D)
        self._v: Tensor | None = None
        self._positions: Tensor | None = None  # (B, capacity) or (B, K, capacity)

    @property
    def positions(self) -> Tensor:
        return self._positions[..., : self.length]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values held, scales and minima included."""
        if self._k is None:
            return 0
        n = self.length - self.n_packed
        packed = sum(part.nbytes for part in self.packed or ())
        return packed + self._k[:, :, :n].nbytes + self._v[:, :, :n].nbytes

    def append(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        """Add k, v (B, K, T, D) at positions (B, T); everything held, dequantised."""
        if self._k is None:
            self._k, self._v, self._positions = k, v, positions
            self.length = k.shape[2]
            return k, v, positions
        if k.shape[0] != self._k.shape[0]:
            raise ValueError(
                f"a batch of {k.shape[0]} rows meets a cache of {self._k.shape[0]} rows"
            )
        start = self.length - self.n_packed
        self._k = _written(self._k, k, start, dim=2)
        self._v = _written(self._v, v, start, dim=2)
        if self._positions.ndim == 3:
            positions = positions[:, None].expand(-1, k.shape[1], -1)
        self._positions = _written(self._positions, positions, self.length, dim=-1)
        self.length += k.shape[2]
        return *self.all(), self.positions

    def all(self) -> tuple[Tensor, Tensor]:
        """Keys and values of every token held, dequantised: (B, K, S, D) each."""
        n = self.length - self.n_packed
        k, v = self._k[:, :, :n], self._v[:, :, :n]
        if self.packed is None:
            return k, v
        old_k, old_v = map(dequantize, self.packed)
        return torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2)

    def replace(self, k: Tensor, v: Tensor, positions: Tensor) -> None:
        """Hold exactly these instead, quantised where the store has `bits`."""
        n = self.length = k.shape[2]
        self._positions = positions
        if self.bits is None or n == 0:
            self._k, self._v, self.packed, self.n_packed = k, v, None, 0
            return
        # Padding takes the values of the last token, so that it widens no range.
        is_pad = _per_head(positions, k)[..., None] < 0
        k, v = (torch.where(is_pad, x[:, :, -1:], x) for x in (k, v))
        self.packed = quantize(k, self.bits, dim=2), quantize(v, self.bits, dim=3)
        self.n_packed = n
        empty = *k.shape[:2], 0, k.shape[3]  # not a slice, which would keep all of k alive
        self._k, self._v = k.new_empty(empty), v.new_empty(empty)

    def index_select(self, rows: Tensor) -> None:
        """Hold only `rows` of the batch, in that order; a row may be given twice."""
        for name in ("_k", "_v", "_positions"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        if self.packed is not None:
            self.packed = tuple(part.index_select(rows) for part in self.packed)


def _written(buffer: Tensor, new: Tensor, start: int, dim: int) -> Tensor:
    """`buffer` with `new` at `start` along `dim`, in a buffer twice as large if it is full."""
    end = start + new.shape[dim]
    if end > buffer.shape[dim]:
        shape = list(buffer.shape)
        shape[dim] = max(end, 2 * buffer.shape[dim], 16)
        grown = buffer.new_empty(shape)
        grown.narrow(dim, 0, start).copy_(buffer.narrow(dim, 0, start))
        buffer = grown
    buffer.narrow(dim, start, new.shape[dim]).copy_(new)
    return buffer


def _per_head(positions: Tensor, k: Tensor) -> Tensor:
    """Positions as (B, K, S), whichever form they have."""
    if positions.ndim == 3:
        return positions
    return positions[:, None].expand(-1, k.shape[1], -1)
