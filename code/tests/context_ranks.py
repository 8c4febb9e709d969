"""What the ranks of the context tests run: new processes must be able to import it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.checkpoints import load_stage
from kvpipe.context import partition
from kvpipe.context.attend import ring_attention, shard
from kvpipe.context.circle import Ring
from kvpipe.context.jobs import Job, attend
from kvpipe.context.plan import Plan
from kvpipe.context.prefill import PrefillAttention, prefill, ring_generate
from kvpipe.pipeline.loss import next_tokens, summed_cross_entropy


def attend_as_pair(group: dist.ProcessGroup, jobs: list[Job]) -> list:
    """A ring of two in a world of three: a rank of the group is not the rank of the world."""
    pair = dist.new_group([1, 2])
    return attend(pair, jobs) if group.rank() > 0 else []


def attend_by_torch(group: dist.ProcessGroup, jobs: list[Job], rotate: str) -> list | None:
    """(out, dq, dk, dv) of every job by torch's own ring; None where it has none any more."""
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention as A

        ring, ring_backward = A._templated_ring_attention, A._templated_ring_attention_backward
        options, set_rotate = A._cp_options, A.set_rotate_method
    except (ImportError, AttributeError):
        return None
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def op(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **_) -> tuple:
        return kernel(query, key, value, 0.0, is_causal)

    def op_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                    logsumexp: Tensor, is_causal: bool = False, **_) -> tuple:  # fmt: skip
        return kernel_backward(grad_out, query, key, value, out, logsumexp, 0.0, is_causal)

    set_rotate(rotate)
    results = []
    for job in jobs:
        options.enable_load_balance = job.layout == "zigzag"
        laid = job.partition(group.size())
        q, k, v, d_out = (
            shard(x, laid, dim=2)[group.rank()] for x in (job.q, job.k, job.v, job.d_out)
        )
        out, lse = ring(group, 2, op, q, k, v, is_causal=job.causal)
        grads = ring_backward(
            group, 2, op_backward, d_out, "grad_out", q, k, v, out, lse, job.causal
        )
        results.append((out, *grads[:3]))
    return results


def attend_by_ring_attention_pytorch(group: dist.ProcessGroup, jobs: list[Job]) -> list[Tensor]:
    """The output of every job; it lays tensors out (B, T, H, D)."""
    from ring_attention_pytorch.ring_flash_attention import ring_flash_attn

    results, P = [], group.size()
    for job in jobs:
        laid = job.partition(P)
        mine = (shard(x, laid, dim=2)[group.rank()] for x in (job.q, job.k, job.v))
        q, k, v = (x.transpose(1, 2).contiguous() for x in mine)
        bucket, is_striped = q.shape[1], job.layout == "striped"
        out = ring_flash_attn(q, k, v, None, job.causal, bucket, True, is_striped, None, P)
        results.append(out.transpose(1, 2))
    return results


def complaints(group: dist.ProcessGroup, job: Job, problems: list[str]) -> dict[str, str]:
    """Problem -> what this rank raises. Afterwards the group must still work."""
    told = {}
    for problem in problems:
        try:
            _run_into(problem, group, job)
            told[problem] = "nothing was raised"
        except ValueError as error:
            told[problem] = str(error)
    told["afterwards"] = str(tuple(attend(group, [job])[0].out.shape))
    return told


def _run_into(problem: str, group: dist.ProcessGroup, job: Job) -> None:
    """On rank 1, something is not as on the others."""
    ring, is_odd = Ring(group), group.rank() == 1
    laid = job.partition(group.size())
    plan = Plan.of(laid, job.q.shape[0])
    q, k, v = (shard(x, laid, dim=2)[group.rank()] for x in (job.q, job.k, job.v))
    window, method = None, "ring"
    if problem == "other layout" and is_odd:
        other = partition("contiguous", 35, group.size())
        plan = Plan.of(other, job.q.shape[0])
        q, k, v = (torch.randn(*x.shape[:2], plan.lengths[1], x.shape[3]) for x in (q, k, v))
    if problem == "more heads" and is_odd:
        q = q.repeat(1, 2, 1, 1)
    if problem == "longer block" and is_odd:
        q, k, v = (torch.cat([x, x], dim=2) for x in (q, k, v))
    if problem == "other dtype" and is_odd:
        q, k, v = (x.double() for x in (q, k, v))
    if problem == "mixed dtypes" and is_odd:
        k = k.bfloat16()
    if problem == "integers":
        q, k, v = (x.long() for x in (q, k, v))
    if problem == "other window" and is_odd:
        window = 5
    if problem == "other method" and is_odd:
        method = "all_gather"
    if problem == "too many ranks for ulysses":
        q, method = q[:, :1].repeat(1, 5 * group.size() + 1, 1, 1), "ulysses"
        k, v = k[:, :1], v[:, :1]
    ring_attention(ring, plan, q, k, v, window, method)


def lose_a_neighbour(group: dist.ProcessGroup, job: Job, how: str, timeout_s: float) -> str:
    """Rank 1 takes part once, and then no more; what the others are told."""
    attend(group, [job])
    if group.rank() == 1:
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    attend(group, [job], timeout_s)
    return "nothing was raised"


def awkward_tensors(group: dist.ProcessGroup, job: Job) -> list[Tensor]:
    """The output for tensors that are transposed views, and for contiguous ones."""
    ring, laid = Ring(group), job.partition(group.size())
    plan = Plan.of(laid, job.q.shape[0])
    plain = [shard(x, laid, dim=2)[ring.rank] for x in (job.q, job.k, job.v)]
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in plain]
    assert not any(x.is_contiguous() for x in views)
    return [ring_attention(ring, plan, *tensors) for tensors in (views, plain)]


def prefill_and_generate(
    group: dist.ProcessGroup,
    folders: list[Path],
    prompts: Tensor,
    positions: Tensor,
    n_new: int,
    cases: list[dict],
) -> list[list[tuple]]:
    """[folder][case] -> tokens that this rank has, their logits, new tokens, bytes cached."""
    torch.manual_seed(group.rank())  # every rank has random numbers of its own
    return [[_answer(group, f, prompts, positions, n_new, case) for case in cases] for f in folders]


def _answer(
    group: dist.ProcessGroup,
    folder: Path,
    prompts: Tensor,
    positions: Tensor,
    n_new: int,
    case: dict,
) -> tuple:
    model, ring = load_stage(folder), Ring(group)
    options = {key: value for key, value in case.items() if key != "sampling"}
    with torch.inference_mode():
        done = prefill(ring, model, prompts, positions, **options)
    sampling = case.get("sampling", {})
    new = ring_generate(ring, model, prompts, n_new, positions=positions, **options, **sampling)
    return done.partition.tokens(ring.rank), done.logits, new, done.cache.nbytes


def prefill_complaints(group: dist.ProcessGroup, folder: Path, prompts: Tensor) -> dict[str, str]:
    """What a rank is told when the prompt is too short, and when rank 1 has another one."""
    model, ring, told = load_stage(folder), Ring(group), {}
    cases = {"short": prompts[:, :1], "other": prompts + group.rank()}
    for name, tokens in cases.items():
        try:
            prefill(ring, model, tokens)
        except ValueError as error:
            told[name] = str(error)
    return told


def train(
    group: dist.ProcessGroup, folder: Path, tokens: Tensor, n_ignored: int
) -> dict[str, Tensor]:
    """Gradients of the mean loss over a batch whose sequences lie on all ranks.

    Targets are made before the tokens are dealt out, so that no border loses one, and divided by
    their number on all ranks, which may be 0 on this one.
    """
    ring, model = Ring(group), load_stage(folder)
    laid = partition("contiguous", tokens.shape[1], ring.n_ranks)
    plan = Plan.of(laid, tokens.shape[0])
    targets = next_tokens(tokens)
    targets[:, tokens.shape[1] - n_ignored :] = -100
    mine = torch.tensor(laid.tokens(ring.rank))
    logits = model(tokens[:, mine], plan.positions[ring.rank], attend=PrefillAttention(ring, plan))
    loss = summed_cross_entropy(logits, targets[:, mine]) / (targets != -100).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
    return {name: parameter.grad for name, parameter in model.named_parameters()}
