"""What each rank of a pipeline owns: which layers, read from the checkpoint and nothing else.

Chapter 2. A rank reads only the tensors of its own chunks. With tied embeddings the first and the
last chunk each own the matrix, unless both live on one rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import nn

from kvpipe.checkpoints import load_stage
from kvpipe.config import Config
from kvpipe.measure import tensor_bytes
from kvpipe.pipeline.ops import Schedule
from kvpipe.transformer import Stage

Stages = dict[int, Stage]  # chunk -> stage, the chunks of one rank


def split_layers(
    n_layers: int, n_chunks: int, sizes: Sequence[int] | None = None
) -> tuple[range, ...]:
    """The layers of each chunk: `sizes` of them, or as even as possible, the longer ones first.

    Raises ValueError where a chunk would be empty or a layer would be left over.
    """
    if not 1 <= n_chunks <= n_layers:
        raise ValueError(
            f"{n_layers} layers cannot be cut into {n_chunks} chunks: each needs at least one "
            f"layer, so use 1 to {n_layers} chunks in all"
        )
    if sizes is None:
        size, longer = divmod(n_layers, n_chunks)
        sizes = [size + (chunk < longer) for chunk in range(n_chunks)]
    if len(sizes) != n_chunks or sum(sizes) != n_layers or min(sizes) < 1:
        raise ValueError(
            f"layers per chunk {list(sizes)}: expected {n_chunks} numbers of at least 1 that sum "
            f"to {n_layers}"
        )
    ends = accumulate(sizes, initial=0)
    return tuple(range(start, stop) for start, stop in pairwise(ends))


def load_stages(
    folder: str | Path,
    schedule: Schedule,
    rank: int,
    sizes: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Stages:
    """The stages of `rank`, from a checkpoint folder; `sizes` counts the layers of each chunk."""
    layers = split_layers(Config.from_hf(folder).n_layers, schedule.n_chunks, sizes)
    chunks = schedule.chunks(rank)
    stages = {chunk: load_stage(folder, layers[chunk], device, dtype) for chunk in chunks}
    share_tied(stages)
    return stages


def tied_ends(stages: Mapping[int, Stage]) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """A rank's embedding and head matrix, where they are copies of one tied matrix."""
    first = next((s for s in stages.values() if s.is_first), None)
    last = next((s for s in stages.values() if s.is_last), None)
    ends = [s is not None and s.config.tied_embeddings for s in (first, last)]
    return (
        first.embedding.weight if ends[0] else None,
        last.head.weight if ends[1] and last.head is not None else None,
    )


def share_tied(stages: Mapping[int, Stage]) -> None:
    """Where both ends of a tied matrix live on one rank, keep it once."""
    embedding, head = tied_ends(stages)
    if embedding is not None and head is not None:
        next(s for s in stages.values() if s.is_last).head.weight = embedding


def owned_bytes(stages: Mapping[int, Stage]) -> int:
    """Bytes of the weights that a rank holds; a shared matrix counts once."""
    return tensor_bytes(p for stage in stages.values() for p in stage.parameters())


def predicted_bytes(config: Config, layers: range, bytes_per_element: int = 4) -> int:
    """Bytes of the weights of one stage, from the config alone."""
    with torch.device("meta"):
        stage = Stage(config, layers)
    return sum(p.numel() for p in stage.parameters()) * bytes_per_element


def resident_bytes() -> int | None:
    """Bytes of this process that are in memory now, mapped files included; None if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # only Linux tells it this way
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
