"""What `kvpipe.comm.launch` runs on every rank of chapter 3, and the reports that come back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe import comm
from kvpipe.checkpoints import load_stage
from kvpipe.context.attend import ring_attention, shard, unshard
from kvpipe.context.circle import Ring
from kvpipe.context.partitions import Partition, partition
from kvpipe.context.plan import Plan
from kvpipe.context.prefill import prefill, ring_generate
from kvpipe.measure import peak_memory_bytes


@dataclass(frozen=True)
class Job:
    """Attention over all ranks, on whole sequences."""

    q: Tensor  # (B, H, S, D)
    k: Tensor  # (B, K, S, D)
    v: Tensor  # (B, K, S, D)
    d_out: Tensor | None = None  # (B, H, S, D): also go backward, from this gradient
    layout: str = "zigzag"
    method: str = "ring"
    causal: bool = True
    window: int | None = None

    def partition(self, n_ranks: int) -> Partition:
        return partition(self.layout, self.q.shape[2], n_ranks)


@dataclass(frozen=True)
class Attended:
    """What one rank got, or all together, and what it took."""

    out: Tensor  # (B, H, T, D)
    grads: tuple[Tensor, ...]  # of q, k and v; empty without `d_out`
    forward_bytes: int  # sent to other ranks
    backward_bytes: int
    forward_s: float
    backward_s: float
    processor_s: float  # of all threads of the process, forward and backward


def attend(group: dist.ProcessGroup, jobs: list[Job], timeout_s: float | None = None) -> list:
    """This rank's `Attended` for every job."""
    return [_attend(Ring(group, timeout_s=timeout_s), job) for job in jobs]


def attend_on_ranks(n_ranks: int, job: Job, timeout_s: float = 120.0) -> Attended:
    """The job on `n_ranks` new processes; the whole output, and the largest of each number."""
    ranks = [reports[0] for reports in comm.launch(attend, n_ranks, [job], timeout_s=timeout_s)]
    return join(ranks, job.partition(n_ranks))


def join(ranks: list[Attended], laid: Partition) -> Attended:
    """The reports of all ranks as one: tensors whole again, of each number the largest."""
    numbers = ("forward_bytes", "backward_bytes", "forward_s", "backward_s", "processor_s")
    grads = zip(*(rank.grads for rank in ranks), strict=True)
    return Attended(
        unshard([rank.out for rank in ranks], laid, dim=2),
        tuple(unshard(parts, laid, dim=2) for parts in grads),
        *(max(getattr(rank, name) for rank in ranks) for name in numbers),
    )


def _attend(ring: Ring, job: Job) -> Attended:
    laid = job.partition(ring.n_ranks)
    plan = Plan.of(laid, job.q.shape[0], job.causal)
    q, k, v = (shard(x, laid, dim=2)[ring.rank] for x in (job.q, job.k, job.v))
    for x in (q, k, v):
        x.requires_grad_(job.d_out is not None)
    d_out = None if job.d_out is None else shard(job.d_out, laid, dim=2)[ring.rank]
    ring.agree([{}], "the start")
    start, started = time.perf_counter(), time.process_time()
    out = ring_attention(ring, plan, q, k, v, job.window, job.method)
    between, forward_bytes = time.perf_counter(), ring.sent_bytes[ring.rank]
    grads = () if d_out is None else torch.autograd.grad(out, (q, k, v), d_out)
    return Attended(
        out.detach(),
        grads,
        forward_bytes,
        backward_bytes=ring.sent_bytes[ring.rank] - forward_bytes,
        forward_s=between - start,
        backward_s=time.perf_counter() - between,
        processor_s=time.process_time() - started,
    )


@dataclass(frozen=True)
class PrefillReport:
    """One rank's part of a prompt, and the answer."""

    tokens: list[int]  # indices of the prompt that it took
    logits: Tensor  # (B, V) of its last token
    new_tokens: list[list[int]]  # of every row, the same on all ranks
    cache_bytes: int  # keys and values of its part of the prompt
    sent_bytes: int  # during prefill
    prefill_s: float


def prefill_and_decode(
    group: dist.ProcessGroup,
    folder: Path,
    prompts: Tensor,
    n_new: int,
    layout: str = "zigzag",
    method: str = "ring",
    positions: Tensor | None = None,
) -> PrefillReport:
    """Prefill prompts (B, S) with the checkpoint in `folder`, then answer with `n_new` tokens."""
    model, ring = load_stage(folder), Ring(group)
    options = {"positions": positions, "layout": layout, "method": method}
    ring.agree([{}], "the start")
    start = time.perf_counter()
    with torch.inference_mode():
        done = prefill(ring, model, prompts, n_logits=1, **options)
    seconds, sent = time.perf_counter() - start, ring.sent_bytes[ring.rank]
    return PrefillReport(
        tokens=done.partition.tokens(ring.rank),
        logits=done.logits[:, -1],
        new_tokens=ring_generate(ring, model, prompts, n_new, **options) if n_new else [],
        cache_bytes=done.cache.nbytes,
        sent_bytes=sent,
        prefill_s=seconds,
    )


def attention_memory(
    group: dist.ProcessGroup,
    n_tokens: int,
    n_heads: int = 9,
    n_kv_heads: int = 3,
    head_size: int = 64,
    layout: str = "zigzag",
    method: str = "ring",
) -> int:
    """Bytes by which the peak memory of this rank grows for its part of one attention, forward.

    Counts its queries, keys, values and output. A short run comes first, so that what torch needs
    once is not counted.
    """
    ring, before = Ring(group), 0
    for S in (64 * group.size(), n_tokens):
        before = peak_memory_bytes() or 0
        plan = Plan.of(partition(layout, S, ring.n_ranks))
        T = plan.lengths[ring.rank]
        q, k, v = (torch.randn(1, n, T, head_size) for n in (n_heads, n_kv_heads, n_kv_heads))
        with torch.inference_mode():
            ring_attention(ring, plan, q, k, v, method=method)
    return (peak_memory_bytes() or 0) - before
