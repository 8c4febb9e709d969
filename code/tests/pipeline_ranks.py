"""What the ranks of the pipeline's tests run: new processes must be able to import it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.decode import DecodeReport, Sampling, decode
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.runtime import StepReport, Trainer
from kvpipe.pipeline.schedules import gpipe, round_robin
from kvpipe.pipeline.stages import Stages, load_stages

Gradients = dict[str, Tensor]  # '<chunk>:<parameter>' -> gradient


@dataclass(frozen=True)
class Case:
    """One training step to be compared with a single process."""

    name: str
    model: str
    schedule: Schedule
    tokens: Tensor
    targets: Tensor
    positions: Tensor | None = None
    sizes: tuple[int, ...] | None = None
    options: dict = field(default_factory=dict)
    n_steps: int = 1  # without zeroing the gradients in between
    frozen: tuple[int, ...] = ()  # chunks whose weights are not trained


def own_stages(group: dist.ProcessGroup, folders: dict[str, Path], case: Case) -> Stages:
    folder = folders[case.model]
    return load_stages(folder, case.schedule, group.rank(), case.sizes, dtype=torch.float64)


def gradients(stages: Stages) -> Gradients:
    return {
        f"{chunk}:{name}": p.grad.clone()
        for chunk, stage in stages.items()
        for name, p in stage.named_parameters()
        if p.grad is not None
    }


def train_cases(
    group: dist.ProcessGroup, folders: dict[str, Path], cases: list[Case]
) -> dict[str, tuple[StepReport, Gradients]]:
    """Case -> this rank's report and gradients."""
    results = {}
    for case in cases:
        stages = own_stages(group, folders, case)
        for chunk in set(case.frozen) & set(stages):
            stages[chunk].requires_grad_(False)
        trainer = Trainer(group, case.schedule, stages, **case.options)
        for _ in range(case.n_steps):
            report = trainer.step(case.tokens, case.targets, case.positions)
        results[case.name] = report, gradients(stages)
    return results


def train_by_torch(
    group: dist.ProcessGroup, folders: dict[str, Path], cases: list[Case]
) -> dict[str, tuple[float | None, Gradients]]:
    """Case -> loss and gradients of torch's engine over the same stages."""
    from kvpipe.pipeline.engine import TorchEngine  # takes seconds to import

    results = {}
    for case in cases:
        stages = own_stages(group, folders, case)
        loss = TorchEngine(group, case.schedule, stages).step(case.tokens, case.targets)
        results[case.name] = loss, gradients(stages)
    return results


def optimize(
    group: dist.ProcessGroup, folders: dict[str, Path], cases: list[Case], batches: list
) -> dict[str, tuple[list[float | None], dict[str, Tensor]]]:
    """Case -> losses of one optimizer step per (tokens, targets), and the weights at the end."""
    results = {}
    for case in cases:
        stages = own_stages(group, folders, case)
        trainer = Trainer(group, case.schedule, stages)
        optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-3)
        losses = []
        for tokens, targets in batches:
            losses.append(trainer.step(tokens, targets).loss)
            optimizer.step()
            optimizer.zero_grad()
        weights = {
            f"{chunk}:{name}": p.detach().clone()
            for chunk, stage in stages.items()
            for name, p in stage.named_parameters()
        }
        results[case.name] = losses, weights
    return results


def train_as_pair(
    group: dist.ProcessGroup, folders: dict[str, Path], case: Case
) -> dict[str, tuple[StepReport, Gradients]]:
    """A pipeline of two in a world of three: a rank of the group is not the rank of the world."""
    pair = dist.new_group([1, 2])
    return train_cases(pair, folders, [case]) if group.rank() > 0 else {}


def complaints(
    group: dist.ProcessGroup, folders: dict[str, Path], case: Case, problems: list[str]
) -> dict[str, str]:
    """Problem -> what this rank raises. Afterwards the group must still work."""
    told = {}
    for problem in problems:
        try:
            _run_into(problem, group, folders, case)
            told[problem] = "nothing was raised"
        except ValueError as error:
            told[problem] = str(error)
    told["afterwards"] = str(train_cases(group, folders, [case])[case.name][0].loss)
    return told


def _run_into(problem: str, group: dist.ProcessGroup, folders: dict[str, Path], case: Case) -> None:
    rank, schedule, sizes, model = group.rank(), case.schedule, case.sizes, case.model
    tokens, targets = case.tokens, case.targets
    if problem == "other schedule":
        schedule = gpipe(2, schedule.n_microbatches) if rank else schedule
    if problem == "other checkpoint":
        model = "other weights" if rank else model
    if problem == "other model":
        model = "other sizes" if rank else model
    if problem == "gap":
        sizes = (3, 4) if rank else (2, 5)
    stages = load_stages(folders[model], schedule, rank, sizes, dtype=torch.float64)
    if problem == "other dtype" and rank:
        stages = {chunk: stage.float() for chunk, stage in stages.items()}
    if problem == "one end frozen" and rank:
        stages[1].head.requires_grad_(False)
    if problem == "other batch":
        tokens = tokens + rank
    if problem == "no target":
        targets = torch.full_like(targets, -100)
    if problem == "too few rows":
        tokens, targets = tokens[:2], targets[:2]
    if problem == "shapes":
        targets = targets[:, 1:]
    Trainer(group, schedule, stages).step(tokens, targets)


def fail_inside(group: dist.ProcessGroup, folders: dict[str, Path], case: Case, how: str) -> None:
    """Rank 1 fails in the middle of a step, at the loss of its second micro-batch."""
    calls = []

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            if how == "raises":
                raise ArithmeticError("this loss cannot be computed")
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stands still":
                signal.pause()
        return logits.sum()

    stages = own_stages(group, folders, case)
    Trainer(group, case.schedule, stages, loss, timeout_s=5).step(case.tokens, case.targets)


@dataclass(frozen=True)
class Answers:
    """One decoding run to be compared with a single process."""

    name: str
    batches: tuple[tuple[Request, ...], ...]
    n_in_flight: int
    sampling: Sampling = field(default_factory=Sampling)


def decode_cases(
    group: dist.ProcessGroup, folder: Path, cases: list[Answers], sizes: tuple[int, ...] | None
) -> dict[str, DecodeReport]:
    """Case -> this rank's report; every rank has random numbers of its own."""
    torch.manual_seed(group.rank())
    schedule = round_robin(group.size(), 1)
    [stage] = load_stages(folder, schedule, group.rank(), sizes).values()
    return {
        case.name: decode(group, stage, case.batches, case.n_in_flight, case.sampling)
        for case in cases
    }


def decode_slowly(
    group: dist.ProcessGroup, folder: Path, batches: tuple, counts: list[int], seconds: float
) -> dict[int, DecodeReport]:
    """Batches in flight -> report, where every forward takes `seconds` longer than it needs."""
    schedule = round_robin(group.size(), 1)
    [stage] = load_stages(folder, schedule, group.rank()).values()
    forward = stage.forward

    def slow(*args: object, **options: object) -> Tensor:
        time.sleep(seconds)
        return forward(*args, **options)

    stage.forward = slow
    return {n: decode(group, stage, batches, n) for n in counts}


def decode_other_requests(group: dist.ProcessGroup, folder: Path, batches: tuple) -> str:
    """Rank 1 is given another prompt."""
    [stage] = load_stages(folder, round_robin(group.size(), 1), group.rank()).values()
    if group.rank():
        batches = ((Request((5, 6, 1), 4),), *batches[1:])
    try:
        decode(group, stage, batches)
    except ValueError as error:
        return str(error)
    return "nothing was raised"
