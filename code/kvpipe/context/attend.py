"""Attention over a sequence that lies on several ranks: one call, three ways to do it (chapter 3).

`ring` passes keys and values round; `all_gather` collects them first, which is what inference
engines do; `ulysses` gives every rank all tokens of some heads (arXiv:2309.14509). All take the
same arguments, run on a `Ring` or a `SimulatedRing`, and have gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kvpipe.context.all_gather import all_gather_backward, all_gather_forward
from kvpipe.context.circle import Circle, Ring, SimulatedRing
from kvpipe.context.merge import Partial
from kvpipe.context.partitions import Partition
from kvpipe.context.plan import Plan
from kvpipe.context.ring import ring_backward, ring_forward
from kvpipe.context.ulysses import ulysses

PROGRAMS = {
    "ring": (ring_forward, ring_backward),
    "all_gather": (all_gather_forward, all_gather_backward),
}
METHODS = (*PROGRAMS, "ulysses")


def context_attention(
    circle: Circle,
    plan: Plan,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    window: int | None = None,
    method: str = "ring",
) -> list[Tensor]:
    """The outputs (B, H, T, D) of the ranks that live in this process: one, or all simulated.

    Per such rank a query (B, H, T, D), a key and a value (B, K, T, D); T may differ from rank to
    rank as `plan` says. Raises ValueError, on all ranks alike, for what does not fit together.
    """
    notes = [
        _note(circle, plan, rank, *tensors, window, method)
        for rank, *tensors in zip(circle.ranks, queries, keys, values, strict=True)
    ]
    circle.agree(notes, "the attention")
    if method == "ulysses":
        return ulysses(circle, plan, queries, keys, values, window)
    return list(_Rounds.apply(circle, plan, window, method, *queries, *keys, *values))


def ring_attention(
    ring: Ring,
    plan: Plan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int | None = None,
    method: str = "ring",
) -> Tensor:
    """`context_attention` of this process's rank: q (B, H, T, D), k and v (B, K, T, D)."""
    return context_attention(ring, plan, [q], [k], [v], window, method)[0]


def simulate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    partition: Partition,
    *,
    causal: bool = True,
    window: int | None = None,
    method: str = "ring",
    circle: SimulatedRing | None = None,
) -> Tensor:
    """The same on all ranks of a simulated ring, whole sequences (B, heads, S, D) in and out.

    Give a `circle` to read its `sent_bytes` afterwards.
    """
    circle = circle or SimulatedRing(partition.n_ranks)
    plan = Plan.of(partition, q.shape[0], causal)
    shards = [shard(x, partition, dim=2) for x in (q, k, v)]
    return unshard(context_attention(circle, plan, *shards, window, method), partition, dim=2)


def shard(x: Tensor, partition: Partition, dim: int = 1) -> list[Tensor]:
    """The parts of x that every rank holds, cut along `dim`."""
    if x.shape[dim] != partition.n_tokens:
        raise ValueError(
            f"the partition is of {partition.n_tokens} tokens, axis {dim} has {x.shape[dim]}"
        )
    ranks = range(partition.n_ranks)
    index = [torch.tensor(partition.tokens(rank), device=x.device) for rank in ranks]
    return [x.index_select(dim, i) for i in index]


def unshard(parts: Sequence[Tensor], partition: Partition, dim: int = 1) -> Tensor:
    """The whole again: the exact inverse of `shard`."""
    inverse = torch.tensor(partition.inverse, device=parts[0].device)
    return torch.cat(list(parts), dim=dim).index_select(dim, inverse)


class _Rounds(torch.autograd.Function):
    """The ring and the all-gather, with the backward pass that their blocks need."""

    @staticmethod
    def forward(
        ctx: Any, circle: Circle, plan: Plan, window: int | None, method: str, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        n = len(circle.ranks)
        queries, keys, values = tensors[:n], tensors[n : 2 * n], tensors[2 * n :]
        forward, _ = PROGRAMS[method]
        totals = circle.run(
            [
                forward(rank, plan, q, torch.stack([k, v]), window)
                for rank, q, k, v in zip(circle.ranks, queries, keys, values, strict=True)
            ]
        )
        outs = tuple(total.out.to(q.dtype) for total, q in zip(totals, queries, strict=True))
        ctx.save_for_backward(*tensors, *outs, *(total.lse for total in totals))
        ctx.run = circle, plan, window, method
        return outs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        circle, plan, window, method = ctx.run
        n, saved = len(circle.ranks), ctx.saved_tensors
        queries, keys, values, outs, lses = (saved[i * n : (i + 1) * n] for i in range(5))
        _, backward = PROGRAMS[method]
        each = zip(circle.ranks, queries, keys, values, outs, lses, d_outs, strict=True)
        grads = circle.run(
            [
                backward(rank, plan, q, torch.stack([k, v]), Partial(out, lse), d_out, window)
                for rank, q, k, v, out, lse, d_out in each
            ]
        )
        d_queries = [d_q.to(queries[0].dtype) for d_q, _ in grads]
        d_keys, d_values = ([d_kv[i].to(keys[0].dtype) for _, d_kv in grads] for i in (0, 1))
        return None, None, None, None, *d_queries, *d_keys, *d_values


def _note(
    circle: Circle,
    plan: Plan,
    rank: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int | None,
    method: str,
) -> dict[str, Any]:
    """What all ranks must agree on, and what is wrong with this one's part."""
    return {
        "problem": _problem(circle, plan, rank, q, k, v, window, method),
        "method": method,
        "window": window,
        "lengths": plan.lengths,
        "causal": plan.causal,
        "queries": (q.shape[0], q.shape[1], *q.shape[3:]),
        "keys": (k.shape[0], k.shape[1], *k.shape[3:]),
        "dtype": str(q.dtype),
    }


def _problem(
    circle: Circle,
    plan: Plan,
    rank: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int | None,
    method: str,
) -> str | None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if method not in METHODS:
        return f"no method is called {method!r}; there are {', '.join(METHODS)}"
    if plan.n_ranks != circle.n_ranks:
        return f"the plan is for {plan.n_ranks} ranks, the ring has {circle.n_ranks}"
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[1] % k.shape[1]:
        return f"{shapes}; expected (B, H, T, D) and twice (B, K, T, D), H a multiple of K"
    B, T = plan.batch, plan.lengths[rank]
    if q.shape[::2] != (B, T) or k.shape[::2] != (B, T) or q.shape[3] != k.shape[3]:
        return f"{shapes}; expected B = {B} and T = {T} here, as in the plan, and one D"
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not q.is_floating_point():
        return f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; expected one floating-point type"
    if window is not None and (window < 1 or not plan.causal):
        return f"a window of {window} tokens needs causal attention and at least 1 token"
    return None
