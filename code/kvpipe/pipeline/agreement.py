"""Do all ranks mean the same thing? Asked once, before anything could hang (chapter 2).

Ranks that disagree about a shape or a schedule wait for messages that never come, or read one
tensor as another. So they compare notes first, and all of them raise the same error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.config import Config
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.stages import Stages, tied_ends


def gather(group: dist.ProcessGroup, note: Any) -> list[Any]:
    """Every rank's note, in the order of ranks, on every rank."""
    notes: list[Any] = [None] * group.size()
    dist.all_gather_object(notes, note, group=group)
    return notes


def same(notes: Sequence[Any], what: str) -> None:
    """Raise ValueError unless every rank noted the same."""
    for rank, note in enumerate(notes):
        if note != notes[0]:
            first = notes[0]
            if isinstance(note, dict):  # only what differs
                first = {key: first[key] for key in note if note[key] != first[key]}
                note = {key: note[key] for key in first}
            raise ValueError(f"ranks disagree about {what}: rank 0 has {first}, rank {rank} {note}")


def check_stages(group: dist.ProcessGroup, schedule: Schedule, stages: Stages) -> None:
    """Raise ValueError, on all ranks alike, unless the stages of all ranks make one model."""
    rank = group.rank()
    problem = _check_own(schedule, stages, group.size(), rank)
    notes = gather(group, (problem, None if problem else _describe(schedule, stages)))
    for other, (problem, _) in enumerate(notes):
        if problem:
            raise ValueError(f"rank {other}: {problem}")
    described = [note for _, note in notes]
    for what in ("the schedule", "the config", "the element type"):
        same([note[what] for note in described], what)
    _check_layers(schedule, described)
    _check_tied([copy for note in described for copy in note["tied"]])


def check_batch(group: dist.ProcessGroup, *tensors: Tensor) -> None:
    """Raise ValueError, on all ranks alike, unless every rank was given the same batch."""
    same(gather(group, [_summary(tensor) for tensor in tensors]), "the batch (shape and digest)")


def _check_own(schedule: Schedule, stages: Stages, n_ranks: int, rank: int) -> str | None:
    """What is wrong with this rank's own part, as text: it must not raise before it has told."""
    if schedule.n_ranks != n_ranks:
        return f"{schedule.name} is made for {schedule.n_ranks} ranks, the group has {n_ranks}"
    if tuple(sorted(stages)) != schedule.chunks(rank):
        return f"{schedule.name} puts chunks {schedule.chunks(rank)} here, given {sorted(stages)}"
    if len({stage.config for stage in stages.values()}) > 1:
        return "its stages come from different models"
    return None


def _describe(schedule: Schedule, stages: Stages) -> dict[str, Any]:
    config: Config = next(iter(stages.values())).config
    ends = {id(p): p for p in tied_ends(stages) if p is not None}.values()
    dtypes = {str(p.dtype) for stage in stages.values() for p in stage.parameters()}
    return {
        "the schedule": (schedule.name, hashlib.sha256(repr(schedule).encode()).hexdigest()[:12]),
        "the config": asdict(config),
        "the element type": sorted(dtypes),
        "layers": {chunk: (s.layers.start, s.layers.stop) for chunk, s in stages.items()},
        "tied": [(float(p.detach().sum(dtype=torch.float64)), p.requires_grad) for p in ends],
    }


def _check_tied(copies: Sequence[tuple[float, bool]]) -> None:
    totals, is_trained = zip(*copies, strict=True) if copies else ((), ())
    if len(set(totals)) > 1:
        raise ValueError(
            "the first and the last stage hold different copies of the tied embedding; load both "
            f"from the same checkpoint (their elements sum to {totals})"
        )
    if len(set(is_trained)) > 1:
        raise ValueError(
            "the embedding is trained on one rank and frozen on another, but it is one matrix: "
            "treat both copies alike"
        )


def _check_layers(schedule: Schedule, notes: Sequence[dict[str, Any]]) -> None:
    layers = {chunk: ends for note in notes for chunk, ends in note["layers"].items()}
    start = 0
    for chunk in range(schedule.n_chunks):
        if layers[chunk][0] != start:
            raise ValueError(
                f"chunk {chunk} starts at layer {layers[chunk][0]}, but the chunks before it end "
                f"at layer {start}"
            )
        start = layers[chunk][1]
    n_layers = notes[0]["the config"]["n_layers"]
    if start != n_layers:
        raise ValueError(f"the last chunk ends at layer {start}, but the model has {n_layers}")


def _summary(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    data = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return tuple(tensor.shape), hashlib.sha256(data).hexdigest()[:12]
