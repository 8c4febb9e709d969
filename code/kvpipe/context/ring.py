"""Attention whose keys and values come round in a circle, forward and backward (chapter 3).

Each rank keeps its queries. At step s it has the keys and values of rank (r - s) mod P in hand,
passes them on, and meanwhile joins what its queries see of them to what it has so far
(Liu et al. 2023, arXiv:2310.01889). In the backward pass they come round once more, and the
gradient of each block travels with it, one step behind, until it is home.

A program is one rank's part, a generator; `kvpipe.context.circle` runs it.
"""

from __future__ import annotations

from torch import Tensor, stack, zeros_like

from kvpipe.context.blocks import Grads, block_backward, block_forward
from kvpipe.context.circle import Program, Shift
from kvpipe.context.merge import Partial, empty, merge_into, sum_dtype
from kvpipe.context.plan import Plan
from kvpipe.context.work import source


def ring_forward(rank: int, plan: Plan, q: Tensor, kv: Tensor, window: int | None) -> Program:
    """q (B, H, T, D) and kv (2, B, K, T, D) of `rank`; returns its `Partial` over all keys.

    The block in hand is posted before it is used, so that it travels while this rank computes.
    """
    P, total = plan.n_ranks, empty(q)
    for step in range(P):
        if step < P - 1:
            following = source(rank, step + 1, P)
            arriving = yield Shift(kv, (*kv.shape[:3], plan.lengths[following], kv.shape[4]))
        absorb(total, plan, rank, source(rank, step, P), q, kv, window)
        if step < P - 1:
            kv = arriving()
    return total


def ring_backward(
    rank: int, plan: Plan, q: Tensor, kv: Tensor, total: Partial, d_out: Tensor, window: int | None
) -> Program:
    """The gradients of q and kv of `rank`, in float32 or wider; `total` is `ring_forward`'s."""
    P, home = plan.n_ranks, None
    d_q = zeros_like(q, dtype=sum_dtype(q.dtype))
    for step in range(P):
        origin, following = source(rank, step, P), source(rank, step + 1, P)
        size = (*kv.shape[:3], plan.lengths[following], kv.shape[4])
        if step < P - 1:
            arriving = yield Shift(kv, size)
        d_kv = absorb_backward(d_q, plan, rank, origin, q, kv, total, d_out, window)
        if home is not None:
            d_kv += home()  # what the ranks before this one have added up for the same block
        if P > 1:
            home = yield Shift(d_kv, size)
        if step < P - 1:
            kv = arriving()
    return d_q, d_kv if home is None else home()


def absorb(
    total: Partial, plan: Plan, rank: int, origin: int, q: Tensor, kv: Tensor, window: int | None
) -> None:
    """Join to `total`, in place, what the queries of `rank` see of the block of `origin`."""
    tile = plan.tile(rank, origin, window)
    if tile.kind == "none":
        return
    k, v = kv[:, :, :, tile.keys]
    mask = _on(q, plan.mask(rank, origin, window))
    part = block_forward(q[:, :, tile.rows], k, v, mask, tile.kind == "causal")
    merge_into(Partial(total.out[:, :, tile.rows], total.lse[:, :, tile.rows]), part)


def absorb_backward(
    d_q: Tensor,
    plan: Plan,
    rank: int,
    origin: int,
    q: Tensor,
    kv: Tensor,
    total: Partial,
    d_out: Tensor,
    window: int | None,
) -> Tensor:
    """Add the block's share to `d_q`, in place; return this rank's share of the gradient of kv."""
    d_kv = zeros_like(kv, dtype=d_q.dtype)
    tile = plan.tile(rank, origin, window)
    if tile.kind == "none":
        return d_kv
    rows, (k, v) = tile.rows, kv[:, :, :, tile.keys]
    seen = Partial(total.out[:, :, rows], total.lse[:, :, rows])
    grads: Grads = block_backward(
        d_out[:, :, rows],
        q[:, :, rows],
        k,
        v,
        seen,
        _on(q, plan.mask(rank, origin, window)),
        tile.kind == "causal",
    )
    d_q[:, :, rows] += grads[0]
    d_kv[:, :, :, tile.keys] = stack(grads[1:])
    return d_kv


def _on(q: Tensor, mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.to(q.device)
