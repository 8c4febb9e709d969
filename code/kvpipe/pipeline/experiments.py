"""What chapter 2 measures: several runs in one launch, each from one call on every rank.

Starting processes takes seconds, so a rank stays for all runs of a comparison. Runs that are
compared take turns, so that a disturbance of the machine hits all alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.comm import link_s
from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.decode import DecodeReport, decode
from kvpipe.pipeline.engine import TorchEngine
from kvpipe.pipeline.jobs import Memory, load_measured
from kvpipe.pipeline.loss import next_tokens
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.runtime import StepReport, Trainer
from kvpipe.pipeline.schedules import round_robin
from kvpipe.pipeline.stages import load_stages


@dataclass(frozen=True)
class DecodeRuns:
    """One rank's account of several decoding runs."""

    memory: Memory  # of the first split
    link_s: float  # one hidden state of one token, from rank to rank
    reports: list[list[DecodeReport]]  # run -> repeats


@dataclass
class TrainRun:
    """One rank's account of training under one schedule."""

    losses: list[float | None] = field(default_factory=list)  # on the rank of the last chunk
    seconds: list[float] = field(default_factory=list)  # of each step, without the optimizer
    reports: list[StepReport] = field(default_factory=list)  # empty under torch's engine


def decode_runs(
    group: dist.ProcessGroup,
    folder: str | Path,
    batches: Sequence[Sequence[Request]],
    runs: Sequence[tuple[Sequence[int] | None, int]],
    repeats: int = 3,
) -> DecodeRuns:
    """Decode the first n of `batches`, all in flight, for every (layers per rank, n) of `runs`."""
    stages, memory = {}, None
    for sizes, _ in runs:
        key = None if sizes is None else tuple(sizes)
        if key not in stages:
            loaded, taken = load_measured(folder, round_robin(group.size(), 1), group.rank(), key)
            stages[key], memory = loaded[group.rank()], memory or taken
    reports: list[list[DecodeReport]] = [[] for _ in runs]
    for _ in range(repeats):
        for (sizes, n), done in zip(runs, reports, strict=True):
            stage = stages[None if sizes is None else tuple(sizes)]
            done.append(decode(group, stage, batches[:n]))
    n_bytes = 4 * next(iter(stages.values())).config.width
    return DecodeRuns(memory, link_s(group, n_bytes) if group.size() > 1 else 0.0, reports)


def train_runs(
    group: dist.ProcessGroup,
    folder: str | Path,
    schedules: Mapping[str, Schedule],
    batches: Sequence[Tensor],
    learning_rate: float,
    by_torch: Sequence[str] = (),
) -> dict[str, TrainRun]:
    """Train from the checkpoint under every schedule, one SGD step per batch of tokens (B, T).

    The names in `by_torch` run under `torch.distributed.pipelining`.
    """
    done = {}
    for name, schedule in schedules.items():
        stages = load_stages(folder, schedule, group.rank())
        if name in by_torch:
            trainer = TorchEngine(group, schedule, stages)
        else:
            trainer = Trainer(group, schedule, stages, counts_activations=True)
        update = torch.optim.SGD(trainer.parameters(), lr=learning_rate)
        run = done[name] = TrainRun()
        for tokens in batches:
            dist.barrier(group)
            start = time.perf_counter()
            result = trainer.step(tokens, next_tokens(tokens))
            run.seconds.append(time.perf_counter() - start)
            if isinstance(result, StepReport):
                run.reports.append(result)
                result = result.loss
            run.losses.append(result)
            update.step()
            update.zero_grad()
        del stages, trainer, update
        gc.collect()
    return done
