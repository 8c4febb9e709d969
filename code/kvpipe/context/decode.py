"""Decoding from a cache whose tokens lie on several ranks (chapter 3).

Every rank has the whole query of the new token and some of the keys. It attends to those, and what
travels is the partial result, H (D + 1) numbers per row, however long the sequence is. Inference
engines call this decode context parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvpipe.attention import visible
from kvpipe.cache import KVCache, Seen
from kvpipe.context.blocks import block_forward
from kvpipe.context.circle import Circle, Gather, Program
from kvpipe.context.interleave import Interleave
from kvpipe.context.merge import Partial, merge


class ShardedCache:
    """The part of a cache that one rank keeps: of new tokens, those that `interleave` gives it.

    `local` may hold tokens already, for example this rank's share of a prompt; then `seen` is how
    many tokens all ranks have seen. A `kvpipe.cache.Cache`.
    """

    def __init__(
        self, rank: int, interleave: Interleave, local: KVCache | None = None, seen: int = 0
    ) -> None:
        if not 0 <= rank < interleave.n_ranks:
            raise ValueError(f"rank {rank} is outside 0..{interleave.n_ranks - 1}")
        self.rank, self.interleave = rank, interleave
        self.local = KVCache() if local is None else local
        self._start = seen
        self._appended: dict[int, int] = {}  # layer -> tokens appended here, kept or not

    @property
    def seen(self) -> int:
        return self._start + max(self._appended.values(), default=0)

    @property
    def nbytes(self) -> int:
        return self.local.nbytes

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        """Keep the own ones of T new tokens; all of this rank's tokens come back."""
        done = self._appended.get(layer, 0)
        first, T = self._start + done, k.shape[2]
        self._appended[layer] = done + T
        mine = [t for t in range(T) if self.interleave.owner(first + t) == self.rank]
        index = torch.tensor(mine, dtype=torch.long, device=k.device)
        own = (x.index_select(2, index) for x in (k, v))
        return self.local.append(layer, *own, positions.index_select(1, index.to(positions.device)))

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        """What is kept depends on the place of a token alone."""


class DecodeAttention:
    """The `attend` of a decoder whose caches are the `ShardedCache`s of a ring of ranks."""

    def __init__(self, circle: Circle) -> None:
        self.circle = circle

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        window: int | None = None,
    ) -> Tensor:
        """Arguments and result as of `kvpipe.attention.attention`; k and v are this rank's."""
        return decode_attention(self.circle, q, [k], [v], q_positions, [k_positions], window)[0]


def decode_attention(
    circle: Circle,
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    q_positions: Tensor,
    k_positions: Sequence[Tensor],
    window: int | None = None,
) -> list[Tensor]:
    """Per rank of this process the output (B, H, T, D), the same on all ranks.

    All have the queries q (B, H, T, D) at q_positions (B, T); each has keys and values
    (B, K, S, D) of its own, S >= 0, at k_positions (B, S).
    """
    each = zip(keys, values, k_positions, strict=True)
    return circle.run(
        [
            _decode(circle.n_ranks, q, local_attention(q, k, v, q_positions, p, window))
            for k, v, p in each
        ]
    )


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    window: int | None = None,
) -> Partial:
    """What the queries see of the keys that are here; nothing at all is fine, too."""
    mask = visible(q_positions, k_positions, window)
    return block_forward(q, k, v, None if mask.all() else mask)


def _decode(n_ranks: int, q: Tensor, part: Partial) -> Program:
    """Everybody joins all parts in the same order, so that all ranks get the same bits.

    A rank without keys takes part as well: whether a message is sent must not depend on what only
    one rank knows.
    """
    packed = torch.cat([part.out.to(part.lse.dtype), part.lse[..., None]], dim=-1)
    arrived = yield Gather(packed, [packed.shape] * n_ranks)
    parts = [Partial(x[..., :-1], x[..., -1]) for x in arrived()]
    return merge(*parts).out.to(q.dtype)
