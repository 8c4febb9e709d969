"""A prompt over several ranks, through the `attend` argument of the same model (chapter 3).

Every rank runs all layers on its own tokens; only attention needs the others. Afterwards each rank
keeps the keys and values it has computed, and decoding goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvpipe.cache import KVCache
from kvpipe.context.attend import ring_attention
from kvpipe.context.circle import Ring
from kvpipe.context.decode import DecodeAttention, ShardedCache
from kvpipe.context.interleave import Interleave
from kvpipe.context.partitions import Partition, partition
from kvpipe.context.plan import Plan
from kvpipe.generate import generate
from kvpipe.pipeline.agreement import check_batch, gather
from kvpipe.transformer import Transformer


class PrefillAttention:
    """The `attend` of a decoder on one rank of `ring`, for tokens laid out by `plan`."""

    def __init__(self, ring: Ring, plan: Plan, method: str = "ring") -> None:
        self.ring, self.plan, self.method = ring, plan, method

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        window: int | None = None,
    ) -> Tensor:
        """Arguments as of `kvpipe.attention.attention`, of this rank's tokens. Has gradients.

        Raises ValueError for keys of other tokens than the queries: a prompt starts from nothing.
        """
        own = self.plan.positions[self.ring.rank]
        for positions in (q_positions, k_positions):
            if positions.shape != own.shape or not bool((positions.cpu() == own).all()):
                raise ValueError(
                    f"positions {tuple(positions.shape)} are not those that the plan has for rank "
                    f"{self.ring.rank}, {tuple(own.shape)}; prefill starts with an empty cache"
                )
        return ring_attention(self.ring, self.plan, q, k, v, window, self.method)


@dataclass(frozen=True)
class Prefilled:
    """What a rank has after the prompt."""

    logits: Tensor  # (B, T, V) of this rank's tokens, or of its last `n_logits`
    cache: ShardedCache  # keys and values of this rank's tokens
    partition: Partition


def prefill(
    ring: Ring,
    model: Transformer,
    tokens: Tensor,
    positions: Tensor | None = None,
    *,
    layout: str = "zigzag",
    method: str = "ring",
    interleave: int = 1,
    n_logits: int | None = None,
) -> Prefilled:
    """Run `model` on a prompt (B, S) of which every rank takes its part; all ranks call it.

    `positions` (B, S) as from `kvpipe.generate.left_pad`. New tokens will be kept in turns of
    `interleave`. Raises ValueError, on all ranks alike, for prompts that differ or are too short.
    """
    B, S = tokens.shape
    if positions is None:
        positions = torch.arange(S, device=tokens.device).expand(B, S)
    check_batch(ring.group, tokens, positions)
    laid = partition(layout, S, ring.n_ranks)
    index = [torch.tensor(laid.tokens(r), device=tokens.device) for r in range(ring.n_ranks)]
    plan = Plan([positions[:, i] for i in index])
    mine, local = index[ring.rank], KVCache(capacity=max(plan.lengths))
    logits = model(
        tokens[:, mine],
        positions[:, mine],
        local,
        PrefillAttention(ring, plan, method),
        n_logits=n_logits,
    )
    cache = ShardedCache(ring.rank, Interleave(ring.n_ranks, interleave), local, seen=S)
    return Prefilled(logits, cache, laid)


@torch.inference_mode()
def ring_generate(
    ring: Ring,
    model: Transformer,
    prompts: Tensor,
    max_new_tokens: int = 64,
    *,
    positions: Tensor | None = None,
    layout: str = "zigzag",
    method: str = "ring",
    interleave: int = 1,
    seed: int | None = None,
    **options: Any,
) -> list[list[int]]:
    """The new tokens of every row of prompts (B, S), the same on all ranks.

    All tokens but the last are prefilled over the ranks; the last one and the new ones decode from
    the sharded cache. Without a `seed`, rank 0's is used, so that all ranks draw alike. Other
    `options` and errors as of `kvpipe.generate.generate`.
    """
    if positions is None:
        positions = torch.arange(prompts.shape[1], device=prompts.device).expand(prompts.shape)
    seed = gather(ring.group, torch.seed() % 2**32 if seed is None else seed)[0]
    done = prefill(
        ring,
        model,
        prompts[:, :-1],
        positions[:, :-1],
        layout=layout,
        method=method,
        interleave=interleave,
        n_logits=1,
    )
    return generate(
        model,
        prompts[:, -1:],
        max_new_tokens,
        positions=positions[:, -1:],
        cache=done.cache,
        attend=DecodeAttention(ring),
        seed=seed,
        **options,
    )
