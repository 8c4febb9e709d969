"""All keys and values on every rank, then attention: what inference engines do (chapter 3).

The bytes of the ring in one collective: nothing hides behind computing, P blocks lie in memory at
once. Work is split as on the ring, so a zigzag partition balances it.
"""

from __future__ import annotations

from torch import Tensor, zeros_like

from kvpipe.context.circle import Exchange, Gather, Program
from kvpipe.context.merge import Partial, empty, sum_dtype
from kvpipe.context.plan import Plan
from kvpipe.context.ring import absorb, absorb_backward


def all_gather_forward(rank: int, plan: Plan, q: Tensor, kv: Tensor, window: int | None) -> Program:
    """Arguments and result as of `kvpipe.context.ring.ring_forward`."""
    total = empty(q)
    arrived = yield Gather(kv, _sizes(plan, kv))
    for origin, block in enumerate(arrived()):
        absorb(total, plan, rank, origin, q, block, window)
    return total


def all_gather_backward(
    rank: int, plan: Plan, q: Tensor, kv: Tensor, total: Partial, d_out: Tensor, window: int | None
) -> Program:
    """Gather once more, then every block's gradient goes to its owner, who adds them up."""
    d_q = zeros_like(q, dtype=sum_dtype(q.dtype))
    arrived = yield Gather(kv, _sizes(plan, kv))
    shares = [
        absorb_backward(d_q, plan, rank, origin, q, block, total, d_out, window)
        for origin, block in enumerate(arrived())
    ]
    arrived = yield Exchange(shares, [kv.shape] * plan.n_ranks)
    return d_q, sum(arrived())


def _sizes(plan: Plan, kv: Tensor) -> list[tuple[int, ...]]:
    return [(*kv.shape[:3], length, kv.shape[4]) for length in plan.lengths]
