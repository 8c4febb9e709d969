"""What a rank does from beginning to end: load its stages, train or decode, report (chapter 2).

For `kvpipe.comm.launch`, which starts new processes: these functions can be imported there, a
notebook's own cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.measure import time_s
from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.decode import DecodeReport, Sampling, decode
from kvpipe.pipeline.loss import next_tokens
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.runtime import StepReport, Trainer
from kvpipe.pipeline.schedules import round_robin
from kvpipe.pipeline.stages import Stages, load_stages, owned_bytes, resident_bytes

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Memory:
    """What the weights of one rank take, by count and by what the system says."""

    layers: tuple[int, ...]
    owned_bytes: int  # of the parameters
    resident_bytes: int | None  # growth of the process while they were read; None if unknown


@dataclass(frozen=True)
class Trained:
    """One rank's account of a training run."""

    memory: Memory
    steps: list[StepReport]

    @property
    def losses(self) -> list[float]:
        """One loss per step, on the rank that holds the last chunk; empty on the others."""
        return [step.loss for step in self.steps if step.loss is not None]


@dataclass(frozen=True)
class Decoded:
    """One rank's account of a decoding run."""

    memory: Memory
    report: DecodeReport


def train(
    group: dist.ProcessGroup,
    folder: str | Path,
    schedule: Schedule,
    batches: Sequence[Tensor],
    learning_rate: float = 1e-4,
    *,
    optimizer: str = "adamw",
    sizes: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: object,
) -> Trained:
    """One optimizer step per batch of token ids (B, T); `options` go to `Trainer`.

    `sizes` counts the layers of each chunk. Raises ValueError for an unknown optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {optimizer!r} is none of {', '.join(OPTIMIZERS)}")
    stages, memory = load_measured(folder, schedule, group.rank(), sizes, device, dtype)
    trainer = Trainer(group, schedule, stages, **options)
    update = OPTIMIZERS[optimizer](trainer.parameters(), lr=learning_rate)
    steps = []
    for tokens in batches:
        steps.append(trainer.step(tokens, next_tokens(tokens)))
        update.step()
        update.zero_grad()
    return Trained(memory, steps)


def compare_engines(
    group: dist.ProcessGroup,
    folder: str | Path,
    schedule: Schedule,
    tokens: Tensor,
    repeats: int = 5,
    *,
    sizes: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> dict[str, list[float]]:
    """Seconds of every training step, ours and torch's, on the same stages: see `race_engines`."""
    stages = load_stages(folder, schedule, group.rank(), sizes, device, dtype)
    return race_engines(group, schedule, stages, tokens, repeats)


def race_engines(
    group: dist.ProcessGroup, schedule: Schedule, stages: Stages, tokens: Tensor, repeats: int
) -> dict[str, list[float]]:
    """Seconds of every training step, ours and torch's, in turns, on the same stages.

    No optimizer step in between, so every step computes the same. A barrier before each one lets
    the ranks start together; the step is over for all when the slowest rank is done. A first round
    is left out.
    """
    from kvpipe.pipeline.engine import TorchEngine  # takes seconds to import

    engines = {
        "kvpipe": Trainer(group, schedule, stages),
        "torch": TorchEngine(group, schedule, stages),
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    targets = next_tokens(tokens)
    for _ in range(repeats + 1):
        for name, engine in engines.items():
            dist.barrier(group)
            seconds[name].append(time_s(lambda engine=engine: engine.step(tokens, targets)))
    return {name: times[1:] for name, times in seconds.items()}


def answer(
    group: dist.ProcessGroup,
    folder: str | Path,
    batches: Sequence[Sequence[Request]],
    n_in_flight: int | None = None,
    sampling: Sampling | None = None,
    *,
    sizes: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    **options: object,
) -> Decoded:
    """Decode all batches, `n_in_flight` at a time; `options` go to `decode`."""
    schedule = round_robin(group.size(), 1)
    stages, memory = load_measured(folder, schedule, group.rank(), sizes, device, dtype)
    stage = stages[group.rank()]
    return Decoded(memory, decode(group, stage, batches, n_in_flight, sampling, **options))


def load_measured(
    folder: str | Path,
    schedule: Schedule,
    rank: int,
    sizes: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Stages, Memory]:
    """The stages of a rank, and how much memory they took.

    Files are mapped: a weight is in memory once it was read, so every one is read here.
    """
    with torch.device("meta"):
        torch.nn.Embedding(1, 1)  # the first one imports 77 MB of Python, which are no weights
    before = resident_bytes()
    stages = load_stages(folder, schedule, rank, sizes, device, dtype)
    for stage in stages.values():
        for weight in stage.parameters():
            weight.detach().sum()
    after = resident_bytes()
    layers = tuple(layer for stage in stages.values() for layer in stage.layers)
    growth = None if before is None or after is None else after - before
    return stages, Memory(layers, owned_bytes(stages), growth)
