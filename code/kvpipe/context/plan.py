"""Which part of which block each rank computes, decided once from positions (chapter 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvpipe.attention import visible
from kvpipe.context.partitions import Partition
from kvpipe.context.tiles import NOTHING, Tile, tile


class Plan:
    """The positions of all ranks, and what follows from them.

    `positions` has, for every rank, the positions (B, T) of its tokens; -1 marks padding, which
    nobody sees. With `causal` a query sees keys at its own position and before, otherwise all.
    """

    def __init__(self, positions: Sequence[Tensor], causal: bool = True) -> None:
        if any(p.ndim != 2 or p.shape[0] != positions[0].shape[0] for p in positions):
            shapes = [tuple(p.shape) for p in positions]
            raise ValueError(f"positions {shapes}; expected (B, T) with one B for all ranks")
        if empty := [rank for rank, p in enumerate(positions) if p.shape[1] == 0]:
            raise ValueError(f"ranks {empty} have no tokens; use fewer ranks")
        self.positions, self.causal = [p.cpu() for p in positions], causal
        self.lengths = [p.shape[1] for p in positions]
        self.batch = positions[0].shape[0]
        self._ascending = [_ascending(p) for p in self.positions]
        self._tiles: dict[tuple[int, int, int | None], Tile] = {}
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    @classmethod
    def of(cls, partition: Partition, batch: int = 1, causal: bool = True) -> Plan:
        """For unpadded rows: token t lies at position t."""
        ranks = range(partition.n_ranks)
        tokens = [torch.tensor(partition.tokens(rank)) for rank in ranks]
        return cls([t.expand(batch, -1) for t in tokens], causal)

    @property
    def n_ranks(self) -> int:
        return len(self.positions)

    def tile(self, rank: int, source: int, window: int | None = None) -> Tile:
        """What the queries of `rank` need of the keys of `source`."""
        key = rank, source, window
        if key not in self._tiles:
            queries, keys = self._ascending[rank], self._ascending[source]
            if queries is None or keys is None:
                self._tiles[key] = self._box(*key)
            else:
                self._tiles[key] = tile(queries, keys, self.causal, window)
        return self._tiles[key]

    def mask(self, rank: int, source: int, window: int | None = None) -> Tensor | None:
        """What is visible inside the tile, (B, 1, rows, keys); None where its kind says it."""
        key, t = (rank, source, window), self.tile(rank, source, window)
        if t.kind != "masked":
            return None
        if key not in self._masks:
            self._masks[key] = self._visible(*key)[:, :, t.rows, t.keys]
        return self._masks[key]

    def _visible(self, rank: int, source: int, window: int | None) -> Tensor:
        queries, keys = self.positions[rank], self.positions[source]
        if self.causal:
            return visible(queries, keys, window)
        return (queries >= 0)[:, None, :, None] & (keys >= 0)[:, None, None]

    def _box(self, rank: int, source: int, window: int | None) -> Tile:
        """The smallest rectangle around all that any row of the batch sees."""
        seen = self._visible(rank, source, window)
        rows, keys = (seen.any(dim=0).any(dim=d)[0].nonzero() for d in (2, 1))
        if not len(rows):
            return NOTHING
        box = [slice(int(found[0]), int(found[-1]) + 1) for found in (rows, keys)]
        return Tile("masked", *box, pairs=int(seen.sum()) // self.batch)


def _ascending(positions: Tensor) -> list[int] | None:
    """The positions of every row, if all rows are alike, unpadded and in order."""
    row = positions[0]
    is_plain = bool((positions == row).all() and (row[:1] >= 0).all() and (row.diff() > 0).all())
    return row.tolist() if is_plain else None
