"""Uneven splits: the best contiguous partition, and how other programs are told. Chapter 4."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvpipe.balance.placements import TIE


def best_split(
    layers: Sequence[float], extras: Sequence[float], shared_savings: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Layers per stage with the smallest largest stage; every stage has at least one.

    `extras` holds what each stage computes beside layers. Of equally good splits the one with the
    smallest sum of squared loads, then the one with more layers in earlier stages. Exact, by
    dynamic programming: O(P L²).
    """
    costs = np.asarray(layers, dtype=float)
    if shared_savings is not None:
        costs = costs - np.asarray(shared_savings, dtype=float)
    n, n_stages = len(costs), len(extras)
    if not 1 <= n_stages <= n:
        raise ValueError(f"{n} layers cannot be cut into {n_stages} stages")
    ends = np.concatenate([[0.0], np.cumsum(costs)])
    # span[a, b] is the cost of layers a to b - 1; a stage is never empty.
    span = np.where(np.tri(n + 1, dtype=bool), np.inf, ends[None, :] - ends[:, None])
    limit = _smallest_maximum(span, extras)
    return _most_even(span, extras, limit * (1 + TIE))


def _smallest_maximum(span: np.ndarray, extras: Sequence[float]) -> float:
    worst = span[0] + extras[0]
    for extra in extras[1:]:
        worst = np.maximum(worst[:, None], span + extra).min(axis=0)
    return float(worst[-1])


def _most_even(span: np.ndarray, extras: Sequence[float], limit: float) -> tuple[int, ...]:
    """Among splits within the limit, the smallest sum of squares, longer stages first."""
    n = len(span) - 1
    rest = np.full(n + 1, np.inf)
    rest[n] = 0.0
    tables = []
    for extra in reversed(extras):
        load = span + extra
        table = np.where(load <= limit, load, np.inf) ** 2 + rest[None, :]
        tables.append(table)
        rest = table.min(axis=1)
    sizes, start = [], 0
    for table in reversed(tables):
        row = table[start]
        end = int(np.flatnonzero(row <= row.min() * (1 + TIE)).max())
        sizes.append(end - start)
        start = end
    return tuple(sizes)


def torchtitan_split(n_layers: int, n_stages: int) -> tuple[int, ...]:
    """torchtitan's default: embedding and head count as one layer each, extra layers go first.

    Source: torchtitan, `pipeline_parallel_first_stage_less_layers` and `..._last_...`, both 1.
    """
    if n_stages < 2:
        return (n_layers,)
    size, longer = divmod(n_layers + 2, n_stages)
    sizes = [size + (stage < longer) for stage in range(n_stages)]
    sizes[0] -= 1
    sizes[-1] -= 1
    if min(sizes) < 1:
        raise ValueError(f"{n_layers} layers over {n_stages} stages leave a stage without a layer")
    return tuple(sizes)


def megatron_layout(sizes: Sequence[int]) -> str:
    """A split for Megatron-LM's `--pipeline-model-parallel-layout`.

    E is the embedding, t a layer, L the head with the loss, | the border of two stages.
    """
    _check_sizes(sizes)
    stages = ["t" if size == 1 else f"t*{size}" for size in sizes]
    return "E" + "|".join(stages) + ",L"


def torchtitan_stages(sizes: Sequence[int]) -> list[list[str]]:
    """A split for torchtitan's `module_fqns_per_model_part`: the module names of every stage."""
    _check_sizes(sizes)
    stages, start = [], 0
    for size in sizes:
        stages.append([f"layers.{layer}" for layer in range(start, start + size)])
        start += size
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "output"]
    return stages


def _check_sizes(sizes: Sequence[int]) -> None:
    if not sizes or min(sizes) < 1:
        raise ValueError(f"layers per stage {list(sizes)}: every stage needs at least one")
