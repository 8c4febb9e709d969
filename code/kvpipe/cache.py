"""The memory of a decoder: keys and values of the tokens it has seen. Chapter 1.

One protocol serves every cache of the book. A layer appends what it computed and gets back all it
may attend to, with positions, so that attention needs no idea of how the memory is laid out.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

Seen = tuple[Tensor, Tensor, Tensor]  # keys (B, K, S, D), values (B, K, S, D), positions


class Cache(Protocol):
    """What a decoder asks of its memory. `KVCache` keeps everything; chapter 6 keeps less."""

    seen: int  # tokens appended so far, kept or not
    nbytes: int  # bytes of the keys and values held

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        """Store k and v (B, K, T, D) at positions (B, T); return all that `layer` may attend to."""

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        """Look at the rotated queries (B, H, T, D) after attention, to decide what to keep."""


class KVCache:
    """Keys and values of every token, in buffers that double when they are full."""

    def __init__(self, capacity: int = 256) -> None:
        if capacity < 1:
            raise ValueError(f"a cache of capacity {capacity} tokens cannot grow; use 1 or more")
        self.capacity = capacity  # tokens that fit before the buffers of a layer grow
        self._buffers: dict[int, Tensor] = {}  # layer -> (2, B, K, capacity, D)
        self._lengths: dict[int, int] = {}  # layer -> tokens stored
        self._positions: Tensor | None = None  # (B, capacity), the same for all layers

    @property
    def seen(self) -> int:
        return max(self._lengths.values(), default=0)

    @property
    def nbytes(self) -> int:
        return sum(
            buffer[:, :, :, : self._lengths[layer]].nbytes
            for layer, buffer in self._buffers.items()
        )

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        start = self._lengths.get(layer, 0)
        end = start + k.shape[2]
        buffer = self._room(layer, k, end)
        if start == self.seen or self._positions is None:
            self._write_positions(positions, start, end)
        buffer[0, :, :, start:end] = k
        buffer[1, :, :, start:end] = v
        self._lengths[layer] = end
        return buffer[0, :, :, :end], buffer[1, :, :, :end], self._positions[:, :end]

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        """A plain cache keeps everything, whatever the queries look at."""

    def _room(self, layer: int, k: Tensor, end: int) -> Tensor:
        """The buffer of `layer`, grown geometrically to hold `end` tokens."""
        B, K, _, D = k.shape
        old = self._buffers.get(layer)
        if old is not None and old.shape[1] != B:
            raise ValueError(f"a batch of {B} rows meets a cache of {old.shape[1]} rows")
        if old is not None and end <= old.shape[3]:
            return old
        while self.capacity < end:
            self.capacity *= 2
        new = k.new_empty(2, B, K, self.capacity, D)
        if old is not None:
            new[:, :, :, : old.shape[3]] = old
        self._buffers[layer] = new
        return new

    def _write_positions(self, positions: Tensor, start: int, end: int) -> None:
        old = self._positions
        if old is None or old.shape[1] < end:
            new = positions.new_full((positions.shape[0], self.capacity), -1)
            if old is not None:
                new[:, : old.shape[1]] = old
            self._positions = new
        self._positions[:, start:end] = positions
