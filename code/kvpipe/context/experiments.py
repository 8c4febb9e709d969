"""Measurements of chapter 3 that need no processes: what a running sum in 16 bits costs."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kvpipe.attention import attention
from kvpipe.context.blocks import block_forward
from kvpipe.context.merge import Partial, empty, merge


def accumulation_errors(
    n_blocks: Iterable[int] = (1, 2, 4, 8, 16, 32, 64),
    n_tokens: int = 4096,
    n_queries: int = 64,
    head_size: int = 64,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Mean absolute error against float64, for keys in more and more blocks.

    The output of every block is rounded to bfloat16, as a kernel in 16 bits hands it over. The
    running output is kept in float32, as on our ring, or rounded to bfloat16 after every merge; the
    log-sum-exp stays in float32 in both. Returns 'float32' and 'bfloat16', each with one error per
    entry of `n_blocks`.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(2, 2, n, head_size, generator=generator)
        for n in (n_queries, n_tokens, n_tokens)
    )
    ends, last = torch.arange(n_tokens), torch.full((2, n_queries), n_tokens)
    truth = attention(q.double(), k.double(), v.double(), last, ends.expand(2, -1))
    errors: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for n in n_blocks:
        blocks = zip(k.tensor_split(n, dim=2), v.tensor_split(n, dim=2), strict=True)
        parts = [block_forward(q, *block) for block in blocks]
        parts = [Partial(part.out.bfloat16(), part.lse) for part in parts]
        for name, found in errors.items():
            total = empty(q)
            for part in parts:
                joined = merge(total, part)
                total = Partial(joined.out.to(getattr(torch, name)), joined.lse)
            found.append((total.out.double() - truth).abs().mean().item())
    return errors
