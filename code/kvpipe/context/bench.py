"""What cutting costs: attention over P ranks against attention in one piece (chapter 3)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch
from torch import Tensor

from kvpipe import comm
from kvpipe.attention import attention
from kvpipe.context.attend import simulate
from kvpipe.context.jobs import Job, attend, attention_memory
from kvpipe.context.partitions import PARTITIONS, partition
from kvpipe.measure import interleaved_s

LAUNCH = {"timeout_s": 300.0, "threads": 1}


def bench_context(quick: bool = False) -> dict:
    """Everything below as plain data; `quick` takes a shorter sequence and fewer rounds."""
    n_tokens, repeats = (1024, 3) if quick else (4096, 7)
    return {
        "tokens": n_tokens,
        "simulated": simulated_overhead(n_tokens, repeats=repeats),
        "real": {P: real_overhead(P, n_tokens, repeats) for P in (2, 4)},
        "memory_bytes": memory_per_rank(2 * n_tokens),
    }


def simulated_overhead(
    n_tokens: int = 4096, n_ranks: int = 4, repeats: int = 7
) -> dict[str, dict[str, float]]:
    """Layout -> total time of all simulated ranks / time of one full causal attention.

    'forward', and 'training' for forward and backward. On torch's current number of threads.
    """
    q, k, v, d_out = example(n_tokens)
    positions = torch.arange(n_tokens)[None]
    calls = {"full": lambda *x: attention(*x, positions, positions)}
    for name in PARTITIONS:
        laid = partition(name, n_tokens, n_ranks)
        calls[name] = lambda *x, laid=laid: simulate(*x, laid)
    runs = {name: lambda call=call: call(q, k, v) for name, call in calls.items()}
    with torch.inference_mode():
        forward = _ratios(interleaved_s(runs, repeats))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    runs = {
        name: lambda call=call: torch.autograd.grad(call(*leaves), leaves, d_out)
        for name, call in calls.items()
    }
    training = _ratios(interleaved_s(runs, repeats))
    return {name: {"forward": forward[name], "training": training[name]} for name in PARTITIONS}


def real_overhead(
    n_ranks: int, n_tokens: int = 4096, repeats: int = 5, layout: str = "zigzag"
) -> dict[str, float]:
    """Forward and backward on real ranks of one thread each, over one full attention likewise.

    'wall': time until the last rank is done, 1/P at best and only where P cores are idle.
    'processor': processor time of all ranks together, which a busy machine does not change much.
    """
    job = Job(*example(n_tokens), layout)
    wall, processor = [], []
    for P in (1, n_ranks):
        ranks = comm.launch(attend, P, [job] * (repeats + 1), **LAUNCH)
        rounds = list(zip(*ranks, strict=True))[1:]  # the first round warms up
        wall.append(statistics.median(max(r.forward_s + r.backward_s for r in x) for x in rounds))
        processor.append(statistics.median(sum(r.processor_s for r in x) for x in rounds))
    return {"wall": wall[1] / wall[0], "processor": processor[1] / processor[0]}


def memory_per_rank(
    n_tokens: int = 8192, counts: Iterable[int] = (1, 2, 4), method: str = "ring"
) -> dict[int, int]:
    """P -> bytes that the attention of a rank needs, the largest of all ranks."""
    return {
        P: max(comm.launch(attention_memory, P, n_tokens, 9, 3, 64, "zigzag", method, **LAUNCH))
        for P in counts
    }


def example(n_tokens: int) -> list[Tensor]:
    """q, k, v and a gradient with the heads of SmolLM2-135M."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, n, n_tokens, 64, generator=generator) for n in (9, 3, 3, 9)]


def _ratios(samples: dict[str, list[float]]) -> dict[str, float]:
    full = statistics.median(samples["full"])
    return {name: statistics.median(times) / full for name, times in samples.items()}
