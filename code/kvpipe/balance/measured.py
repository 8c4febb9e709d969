"""The same pipeline trained with and without shared layers, in turns, on real processes. Chapter 4.

For `kvpipe.comm.launch`. This module measures, so it needs torch; the planner never imports it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from kvpipe.balance.stages import even_split, ranges
from kvpipe.config import Config
from kvpipe.pipeline.loss import next_tokens
from kvpipe.pipeline.runtime import Trainer
from kvpipe.pipeline.schedules import build
from kvpipe.transformer import Stage


@dataclass
class StageTimes:
    """One rank's times under one configuration, an entry per repeat, in seconds."""

    step_s: list[float] = field(default_factory=list)  # of the whole step, waiting included
    busy_s: list[float] = field(default_factory=list)  # of its operations, by the clock
    processor_s: list[float] = field(default_factory=list)  # of its processor: free of others' work
    loss: list[float | None] = field(default_factory=list)  # on the last rank

    def paired_change(self, other: StageTimes, what: str = "processor_s") -> float:
        """Median over the repeats of other / self - 1: each pair ran right after each other."""
        pairs = zip(getattr(self, what), getattr(other, what), strict=True)
        return statistics.median(after / before for before, after in pairs) - 1


def train_in_turns(
    group: dist.ProcessGroup,
    config: Config,
    sources: Mapping[str, Sequence[int]],
    n_rows: int = 6,
    n_tokens: int = 384,
    repeats: int = 5,
    schedule: str = "1f1b",
    sizes: Sequence[int] | None = None,
) -> dict[str, StageTimes]:
    """Train `config` once per step with each `kv_source` of `sources`, taking turns.

    One micro-batch per row, one stage per rank, float32, random weights and tokens. Taking turns
    lets a disturbance of the machine hit all alike; every other repeat goes in reverse order. The
    first round is not counted, and the optimizer's step is not timed. Every source must lie on
    its reader's stage.
    """
    order = build(schedule, group.size(), n_rows)
    sizes = sizes or even_split(config.n_layers, group.size())
    layers = ranges(sizes)[group.rank()]
    trainers, updates = {}, {}
    for name, kv_source in sources.items():
        torch.manual_seed(group.rank())
        stage = Stage(replace(config, kv_source=tuple(kv_source)), layers)
        trainers[name] = Trainer(group, order, {group.rank(): stage})
        updates[name] = torch.optim.SGD(trainers[name].parameters(), lr=1e-2)
    tokens = torch.randint(
        config.vocab_size, (n_rows, n_tokens), generator=torch.Generator().manual_seed(4)
    )
    targets = next_tokens(tokens)
    done = {name: StageTimes() for name in sources}
    for repeat in range(repeats + 1):
        for name in list(sources)[:: 1 if repeat % 2 else -1]:
            dist.barrier(group)
            start, busy = time.perf_counter(), time.thread_time()
            report = trainers[name].step(tokens, targets)
            processor_s = time.thread_time() - busy
            step_s = time.perf_counter() - start
            updates[name].step()
            updates[name].zero_grad()
            if repeat > 0:
                times = done[name]
                times.step_s.append(step_s)
                times.busy_s.append(sum(end - begin for _, begin, end in report.spans))
                times.processor_s.append(processor_s)
                times.loss.append(report.loss)
    return done


def stage_medians(
    ranks: Sequence[Mapping[str, StageTimes]], name: str, what: str = "processor_s"
) -> list[float]:
    """Median seconds per step of every stage: the planner's `times`, from `launch`'s results."""
    return [statistics.median(getattr(rank[name], what)) for rank in ranks]


def measured_saving(
    ranks: Sequence[Mapping[str, StageTimes]],
    before: str,
    after: str,
    stage: int,
    n_shared: int,
    what: str = "processor_s",
) -> float:
    """Seconds per step that each of `n_shared` conversions on `stage` saved, for the planner."""
    rank = ranks[stage]
    pairs = zip(getattr(rank[before], what), getattr(rank[after], what), strict=True)
    return statistics.median(b - a for b, a in pairs) / n_shared
