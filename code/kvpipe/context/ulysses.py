"""All tokens of some heads instead of some tokens of all heads (chapter 3, arXiv:2309.14509).

One exchange before attention and one after it. Query heads are dealt out evenly, so P must divide
H; a KV head that serves query heads of several ranks is copied to each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kvpipe.attention import attention
from kvpipe.context.circle import Circle, Exchange, Program, Size
from kvpipe.context.plan import Plan
from kvpipe.context.traffic import ulysses_heads

Parts = list[list[Tensor]]  # local rank -> other rank -> tensor


def ulysses(
    circle: Circle,
    plan: Plan,
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    window: int | None = None,
) -> list[Tensor]:
    """Arguments and result as of `kvpipe.context.attend.context_attention`.

    Raises ValueError unless P divides the number of query heads.
    """
    heads = ulysses_heads(queries[0].shape[1], keys[0].shape[1], circle.n_ranks)
    whole = [[] for _ in circle.ranks]  # local rank -> q, k, v over all tokens
    for tensors, kind in ((queries, 0), (keys, 1), (values, 1)):
        B, _, _, D = tensors[0].shape
        dealt = [[x[:, h[kind].start : h[kind].stop] for h in heads] for x in tensors]
        sizes = [[(B, len(heads[r][kind]), T, D) for T in plan.lengths] for r in circle.ranks]
        for found, parts in zip(whole, exchange(circle, dealt, sizes), strict=True):
            found.append(torch.cat(parts, dim=2))
    group = queries[0].shape[1] // keys[0].shape[1]
    outs = [
        _attend(plan, *tensors, heads[rank], group, window)
        for rank, tensors in zip(circle.ranks, whole, strict=True)
    ]
    sizes = [
        [(*out.shape[:2], plan.lengths[rank], out.shape[3])] * circle.n_ranks
        for rank, out in zip(circle.ranks, outs, strict=True)
    ]
    back = exchange(circle, [list(out.split(plan.lengths, dim=2)) for out in outs], sizes)
    return [torch.cat(parts, dim=1) for parts in back]


def _attend(
    plan: Plan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: tuple[range, range],
    group: int,
    window: int | None,
) -> Tensor:
    """Attention of some heads over all tokens, which lie one rank after the other."""
    mine, theirs = heads
    if len(mine) != len(theirs) * group and len(theirs) > 1:  # a group is cut: one KV head each
        index = torch.tensor([h // group - theirs.start for h in mine], device=k.device)
        k, v = k.index_select(1, index), v.index_select(1, index)
    positions = torch.cat(plan.positions, dim=1).to(q.device)
    order = positions[0].argsort(stable=True)
    q, k, v = (x.index_select(2, order) for x in (q, k, v))
    positions = positions[:, order]
    last = positions if plan.causal else positions.max().where(positions >= 0, -1)
    return attention(q, k, v, last, positions, window).index_select(2, order.argsort())


def exchange(circle: Circle, parts: Parts, arriving: Sequence[Sequence[Size]]) -> Parts:
    """Part i of a local rank to rank i, part j of rank j back; the gradient goes the other way.

    `arriving` has, for every local rank, the size of what comes from each rank.
    """
    n = circle.n_ranks
    flat = _Exchange.apply(circle, arriving, *(part for row in parts for part in row))
    return _rows(flat, n)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, circle: Circle, arriving: Sequence[Sequence[Size]], *flat: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.circle, ctx.sizes = circle, _rows([part.shape for part in flat], circle.n_ranks)
        return _run(circle, _rows(flat, circle.n_ranks), arriving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *flat: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_run(ctx.circle, _rows(flat, ctx.circle.n_ranks), ctx.sizes)


def _run(circle: Circle, parts: Parts, arriving: Sequence[Sequence[Size]]) -> tuple[Tensor, ...]:
    programs = [_program(*of_rank) for of_rank in zip(parts, arriving, strict=True)]
    return tuple(part for row in circle.run(programs) for part in row)


def _program(parts: Sequence[Tensor], arriving: Sequence[Size]) -> Program:
    arrived = yield Exchange(parts, arriving)
    return [part.clone() for part in arrived()]  # what is sent stays the sender's own


def _rows(flat: Sequence[Any], n: int) -> list[list[Any]]:
    return [list(flat[i : i + n]) for i in range(0, len(flat), n)]
