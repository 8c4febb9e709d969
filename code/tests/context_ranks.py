"""What the ranks of the context tests run: new processes must be able to import it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.checkpoints import load_stage
from kvpipe.context import partition
from kvpipe.context.attend import ring_attention, shard
from kvpipe.context.circle import Ring
from kvpipe.context.plan import Plan
from kvpipe.context.prefill import prefill, ring_generate


@dataclass(frozen=True)
class Case:
    """Attention over all ranks, to be compared with attention in one process."""

    name: str
    q: Tensor  # (B, H, S, D)
    k: Tensor  # (B, K, S, D)
    v: Tensor
    d_out: Tensor
    layout: str
    method: str = "ring"
    causal: bool = True
    window: int | None = None


def attend_cases(group: dist.ProcessGroup, cases: list[Case]) -> dict[str, tuple]:
    """Case -> this rank's output, three gradients, and bytes sent forward and backward."""
    return {case.name: _attend(Ring(group), case) for case in cases}


def _attend(ring: Ring, case: Case) -> tuple:
    laid = partition(case.layout, case.q.shape[2], ring.n_ranks)
    plan = Plan.of(laid, case.q.shape[0], case.causal)
    q, k, v, d_out = (
        shard(x, laid, dim=2)[ring.rank] for x in (case.q, case.k, case.v, case.d_out)
    )
    for x in (q, k, v):
        x.requires_grad_()
    out = ring_attention(ring, plan, q, k, v, case.window, case.method)
    forward_bytes = ring.sent_bytes[ring.rank]
    grads = torch.autograd.grad(out, (q, k, v), d_out)
    return out.detach(), *grads, forward_bytes, ring.sent_bytes[ring.rank] - forward_bytes


def prefill_and_generate(
    group: dist.ProcessGroup, folder: Path, prompts: Tensor, positions: Tensor, n_new: int
) -> dict[str, tuple]:
    """(layout, method) -> tokens that this rank has, their logits, and the new tokens."""
    model = load_stage(folder)
    ring, results = Ring(group), {}
    for layout, method in (("zigzag", "ring"), ("striped", "all_gather")):
        options = {"layout": layout, "method": method, "interleave": 2}
        with torch.inference_mode():
            done = prefill(ring, model, prompts, positions, **options)
        new = ring_generate(ring, model, prompts, n_new, positions=positions, **options)
        results[layout] = done.partition.tokens(ring.rank), done.logits, new, done.cache.nbytes
    return results
