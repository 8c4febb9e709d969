r"""Stages, their loads, and FIR: the largest stage over the mean stage. Chapter 4.

Layers count from 0, as in `Config.kv_source`; papers usually count from 1. A *chunk* is a run of
layers; a stage is all that one rank computes, one chunk or (in interleaved schedules) several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from kvpipe.balance.costs import ModelCosts
from kvpipe.pipeline.segments import equal_segments


@dataclass(frozen=True)
class StageCosts:
    """Costs of layers, cut into chunks that lie on ranks; loads follow for any shared layers."""

    layers: tuple[float, ...]  # cost of each layer
    savings: tuple[float, ...]  # what sharing it removes; 0 = cannot share
    kinds: tuple[str, ...]  # layers of one kind may read each other's keys and values
    chunks: tuple[range, ...]  # chunk -> its layers
    extras: tuple[float, ...]  # chunk -> cost of what it holds beside layers
    placement: tuple[int, ...]  # chunk -> rank

    @property
    def n_stages(self) -> int:
        return max(self.placement) + 1

    @property
    def stage_of(self) -> tuple[int, ...]:
        """Layer -> the rank that computes it."""
        pairs = zip(self.chunks, self.placement, strict=True)
        owner = {layer: rank for chunk, rank in pairs for layer in chunk}
        return tuple(owner[layer] for layer in range(len(self.layers)))

    def chunk_loads(self, shared: Iterable[int] = ()) -> tuple[float, ...]:
        """Cost of every chunk when the layers of `shared` compute no keys and values."""
        shared = set(shared)
        if unknown := shared - set(range(len(self.layers))):
            raise ValueError(
                f"layers {sorted(unknown)} do not exist; the model has 0 to {len(self.layers) - 1}"
            )
        cost = [
            c - (s if layer in shared else 0.0)
            for layer, (c, s) in enumerate(zip(self.layers, self.savings, strict=True))
        ]
        return tuple(
            math.fsum([*(cost[layer] for layer in chunk), extra])
            for chunk, extra in zip(self.chunks, self.extras, strict=True)
        )

    def loads(self, shared: Iterable[int] = ()) -> tuple[float, ...]:
        """Cost of every stage, that is of all chunks of each rank."""
        loads: list[list[float]] = [[] for _ in range(self.n_stages)]
        for rank, load in zip(self.placement, self.chunk_loads(shared), strict=True):
            loads[rank].append(load)
        return tuple(map(math.fsum, loads))

    def fir(self, shared: Iterable[int] = ()) -> float:
        return fir(self.loads(shared))

    def cut(self, chunks: Sequence[range]) -> StageCosts:
        """The same layers and extras under another partition into as many chunks."""
        return replace(self, chunks=check_partition(chunks, len(self.layers), len(self.chunks)))


def fir(loads: Sequence[float]) -> float:
    """The largest load over the mean load: 1 is perfect balance.

    Raises ValueError for no stage, for negative or NaN loads, and where all are 0.
    """
    if not loads:
        raise ValueError("FIR needs at least one stage")
    for stage, load in enumerate(loads):
        if not (math.isfinite(load) and load >= 0):
            raise ValueError(f"stage {stage} has load {load}; it must be finite and at least 0")
    if max(loads) == 0:
        raise ValueError("all stages have load 0, so FIR has no value")
    return max(loads) * len(loads) / math.fsum(loads)


def even_split(n_layers: int, n_chunks: int) -> tuple[int, ...]:
    """Layers per chunk, as equal as possible, the longer chunks first."""
    if not 1 <= n_chunks <= n_layers:
        raise ValueError(
            f"{n_layers} layers cannot be cut into {n_chunks} stages: each needs at least one "
            f"layer, so use 1 to {n_layers}"
        )
    return equal_segments(n_layers, n_chunks)


def ranges(sizes: Sequence[int]) -> tuple[range, ...]:
    """Layers per chunk -> the layers of each chunk."""
    return tuple(range(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))


def check_partition(
    chunks: Sequence[Sequence[int]], n_layers: int, n_chunks: int | None = None
) -> tuple[range, ...]:
    """`chunks` as ranges. Raises ValueError where they miss, repeat or reorder a layer."""
    listed = [layer for chunk in chunks for layer in chunk]
    repeated = sorted({layer for layer in listed if listed.count(layer) > 1})
    missing = sorted(set(range(n_layers)) - set(listed))
    unknown = sorted(set(listed) - set(range(n_layers)))
    for what, layers in (("repeats", repeated), ("misses", missing), ("invents", unknown)):
        if layers:
            raise ValueError(f"the partition {what} layers {layers} of a model of {n_layers}")
    if listed != sorted(listed) or not all(len(chunk) for chunk in chunks):
        raise ValueError("every chunk needs at least one layer, and layers must stay in order")
    if n_chunks is not None and len(chunks) != n_chunks:
        raise ValueError(f"the partition has {len(chunks)} chunks, expected {n_chunks}")
    return tuple(range(chunk[0], chunk[-1] + 1) for chunk in chunks)


def stage_costs(
    costs: ModelCosts,
    stages: int | Sequence[int],
    placement: Sequence[int] | None = None,
) -> StageCosts:
    """Cut a model into chunks: their number (as even as possible) or their sizes in layers.

    `placement` puts chunks on ranks, chunk i on rank i by default. Raises ValueError for a cut
    that does not fit the model.
    """
    n_layers = len(costs.layers)
    if isinstance(stages, int):
        sizes: Sequence[int] = even_split(n_layers, stages)
    else:
        sizes = stages
        if not sizes or min(sizes) < 1 or sum(sizes) != n_layers:
            raise ValueError(
                f"layers per stage {list(sizes)} must be at least 1 and sum to {n_layers}"
            )
    extras = [0.0] * len(sizes)
    for extra in costs.extras:
        if not -len(sizes) <= extra.stage < len(sizes):
            raise ValueError(f"{extra.name} is on stage {extra.stage} of {len(sizes)}")
        extras[extra.stage] += extra.cost
    return StageCosts(
        tuple(layer.total for layer in costs.layers),
        tuple(layer.saving for layer in costs.layers),
        tuple(layer.kind for layer in costs.layers),
        ranges(sizes),
        tuple(extras),
        tuple(placement) if placement is not None else tuple(range(len(sizes))),
    )


def may_share(
    costs: StageCosts, *, same_stage: bool = False, alpha: float = 0.0
) -> tuple[bool, ...]:
    """Which layers may be converted at all.

    A layer needs something to save, a source of its kind before it, and with `same_stage` one on
    its own stage: so the first layer of a kind (of a kind on a stage) never may. Any set of the
    others is legal, because the first one stays. Layers whose depth (l + 1) / L is below `alpha`
    are left alone.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}; it is a relative depth from 0 to 1")
    seen, allowed, n, stage_of = set(), [], len(costs.layers), costs.stage_of
    for layer, (kind, saving) in enumerate(zip(costs.kinds, costs.savings, strict=True)):
        group = (kind, stage_of[layer]) if same_stage else kind
        allowed.append(saving > 0 and group in seen and (layer + 1) / n >= alpha)
        if kind:
            seen.add(group)
    return tuple(allowed)


def kv_source(
    costs: StageCosts, shared: Iterable[int], *, same_stage: bool = False
) -> tuple[int, ...]:
    """Layer -> whose keys and values it reads: the nearest earlier one of its kind that has some.

    With `same_stage` only sources on the layer's own stage count. Raises ValueError for a shared
    layer without a source.
    """
    shared, last, sources = set(shared), {}, []
    stage_of = costs.stage_of
    for layer, kind in enumerate(costs.kinds):
        group = (kind, stage_of[layer]) if same_stage else kind
        if layer not in shared:
            sources.append(layer)
            last[group] = layer
        elif not kind or group not in last:
            where = " on its own stage" if same_stage else ""
            raise ValueError(
                f"layer {layer} cannot share: no earlier layer of its kind{where} computes keys "
                "and values"
            )
        else:
            sources.append(last[group])
    return tuple(sources)
