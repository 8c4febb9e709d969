"""What the benchmark of chapter 2 runs on every rank: decoding, and steps of two engines.

All that is compared runs in one launch, in turns, so a disturbance of the machine hits all alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.checkpoints import load_stage
from kvpipe.comm import link_s
from kvpipe.config import Config
from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.decode import DecodeReport, decode
from kvpipe.pipeline.jobs import race_engines
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.schedules import round_robin
from kvpipe.pipeline.stages import Stages, load_stages, split_layers
from kvpipe.transformer import Stage

# So small that a step is the engine's own time, and little else.
SMALL = Config(
    vocab_size=64, width=32, n_layers=8, n_heads=2, n_kv_heads=1, head_size=16, ffn_width=64
)


@dataclass
class DecodeRates:
    """One rank's account of the same decoding in several ways, a report per round."""

    link_s: float  # one hidden state of one token, from rank to rank
    alone: dict[int, list[DecodeReport]] = field(default_factory=dict)  # threads ->; on rank 0
    together: dict[int, list[DecodeReport]] = field(default_factory=dict)  # batches in flight ->


def decode_rates(
    group: dist.ProcessGroup,
    folder: str | Path,
    batches: Sequence[Sequence[Request]],
    counts: Sequence[int],
    threads_alone: Sequence[int],
    repeats: int,
) -> DecodeRates:
    """Decode the first n of `batches`, all in flight, for every n of `counts`; one rank alone, too.

    Rank 0 alone has the whole model and the first batch, with each of `threads_alone`; the others
    wait for it, asleep. A first round, which reads the weights, is left out.
    """
    rank, n_ranks = group.rank(), group.size()
    stage = load_stages(folder, round_robin(n_ranks, 1), rank)[rank]
    single = dist.new_group([0])
    whole = load_stage(folder) if rank == 0 else None
    rates = DecodeRates(link_s(group, 4 * stage.config.width))
    for _ in range(1 + repeats):
        for threads in threads_alone if whole else ():
            torch.set_num_threads(threads)
            rates.alone.setdefault(threads, []).append(decode(single, whole, batches[:1]))
        torch.set_num_threads(1)
        for n in counts:
            dist.barrier(group)
            rates.together.setdefault(n, []).append(decode(group, stage, batches[:n]))
        dist.barrier(group)
    for done in (*rates.alone.values(), *rates.together.values()):
        del done[0]
    return rates


def engine_steps(
    group: dist.ProcessGroup,
    folder: str | Path,
    schedules: Mapping[str, Schedule],
    tokens: Tensor,
    repeats: int,
) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Seconds of training steps on this rank: (model, schedule) -> engine -> rounds.

    Models are the checkpoint's and `SMALL`, for which rounds are ten times as many, because they
    are short. `tokens` (B, T) are ids that both know.
    """
    rank, done = group.rank(), {}
    for name, schedule in schedules.items():
        stages = load_stages(folder, schedule, rank)
        done["checkpoint", name] = race_engines(group, schedule, stages, tokens, repeats)
        stages = small_stages(schedule, rank)
        done["very small", name] = race_engines(group, schedule, stages, tokens, 10 * repeats)
    return done


def small_stages(schedule: Schedule, rank: int) -> Stages:
    """The stages of `SMALL` that belong to `rank`, with random weights."""
    layers = split_layers(SMALL.n_layers, schedule.n_chunks)
    return {chunk: Stage(SMALL, layers[chunk]) for chunk in schedule.chunks(rank)}
