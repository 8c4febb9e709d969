"""Measured stage times in place of FLOPs as the signal of the planner. Chapter 4.

FLOPs are not time: a small matrix runs below the speed of a large one, and a head moves more
bytes per FLOP than a layer. A file of measured times corrects that.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvpipe.balance.architecture import read_object
from kvpipe.balance.costs import number
from kvpipe.balance.stages import StageCosts

FIELDS = {"stages", "saving", "unit"}


def read_times(path: str | Path) -> tuple[list[float], float | None, str]:
    """Measured time per stage, measured time that one conversion saves (or None), and the unit.

    The file is `{"stages": [3.1, 3.0, 4.2], "saving": 0.2, "unit": "ms"}`; only "stages" is
    needed. Raises ValueError for missing, negative, NaN or unknown entries.
    """
    content = read_object(Path(path))
    if unknown := content.keys() - FIELDS:
        raise ValueError(f"{path}: unknown fields {sorted(unknown)}; known are {sorted(FIELDS)}")
    times = content.get("stages")
    if not isinstance(times, list) or not times:
        raise ValueError(f'{path} needs "stages": one measured time per stage')
    times = [number(time, f"the time of stage {stage}") for stage, time in enumerate(times)]
    saving = content.get("saving")
    if saving is not None:
        saving = number(saving, "the measured saving")
    return times, saving, str(content.get("unit", "s"))


def calibrate(costs: StageCosts, times: Sequence[float], saving: float | None = None) -> StageCosts:
    """Costs in units of time, such that every stage costs what was measured.

    The speed of layers is the median over the stages that hold nothing else; where all hold
    something else, each stage is scaled as a whole. What a stage takes beyond its layers becomes
    its extra; a stage faster than its layers at that speed has its layers scaled down instead.
    `saving` is the measured time of one conversion; without it savings scale like their layers.
    Raises ValueError for a wrong number of times, for 0 and for a saving above its layer.
    """
    if len(costs.chunks) != costs.n_stages:
        raise ValueError("measured stage times need one chunk per rank")
    if len(times) != costs.n_stages:
        raise ValueError(f"{len(times)} measured times for {costs.n_stages} stages")
    loads = costs.loads()
    for stage, time in enumerate(times):
        number(time, f"the time of stage {stage}")
        if time == 0:
            raise ValueError(f"stage {stage} took no time; measure again")
    bare = [t / f for t, f, e in zip(times, loads, costs.extras, strict=True) if e == 0]
    speed = statistics.median(bare) if bare else None
    factors, extras = [], []
    for time, load, extra in zip(times, loads, costs.extras, strict=True):
        work = load - extra
        factor = speed if extra and speed is not None and speed * work <= time else time / load
        factors.append(factor)
        extras.append(time - factor * work if extra else 0.0)
    layer_factor = [factors[stage] for stage in costs.stage_of]
    layers = tuple(c * f for c, f in zip(costs.layers, layer_factor, strict=True))
    savings = tuple(
        f * s if saving is None or s == 0 else saving
        for s, f in zip(costs.savings, layer_factor, strict=True)
    )
    if too_large := [i for i, (c, s) in enumerate(zip(layers, savings, strict=True)) if s > c]:
        raise ValueError(
            f"the measured saving {saving} exceeds the time of layers {too_large}; "
            "give it in the unit of the stage times"
        )
    return replace(costs, layers=layers, savings=savings, extras=tuple(extras))
