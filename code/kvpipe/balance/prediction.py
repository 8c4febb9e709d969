"""What a plan is worth: the time of an iteration and MFU, from the schedule simulator. Chapter 4.

Stage costs become operation times (forward 1, backward 2 by default), transfers are free unless a
`Comm` says otherwise, and every rank computes at the same speed. Time is in units of cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvpipe.balance.costs import Conventions, Extra, ModelCosts
from kvpipe.balance.stages import StageCosts, stage_costs
from kvpipe.pipeline import Comm, Cost, Schedule, Timeline, build, simulate


@dataclass(frozen=True)
class Prediction:
    """One simulated iteration."""

    timeline: Timeline
    work: float  # model FLOPs of the iteration, without recomputation

    @property
    def time(self) -> float:
        """From the first start to the last end."""
        return self.timeline.makespan

    @property
    def mfu(self) -> float:
        """Model FLOPs over what the ranks could have computed in that time at full speed."""
        return self.work / (len(self.timeline.spans) * self.time)


@dataclass(frozen=True)
class Change:
    """What a plan changes, as parts of the value before: -0.1 is ten per cent less."""

    time: float  # of an iteration
    mfu_recomputed: float  # model FLOPs counted anew after the conversion
    mfu_fixed: float  # model FLOPs of the unconverted model
    limit: float  # of time, for ever more micro-batches: the change of the largest stage


def schedule_for(
    costs: ModelCosts,
    n_stages: int,
    name: str = "1f1b",
    n_microbatches: int = 32,
    *,
    sizes: Iterable[int] | None = None,
    chunks_per_rank: int | None = None,
    segments: int | None = None,
) -> tuple[StageCosts, Schedule]:
    """A model cut for a schedule by name, and the schedule (see `kvpipe.pipeline.build`).

    `sizes` are the layers of each chunk. Raises ValueError for a schedule that does not train and
    for options or sizes that do not fit.
    """
    schedule = build(name, n_stages, n_microbatches, chunks_per_rank, segments)
    if not schedule.trains:
        raise ValueError(f"{name} only decodes; an iteration of training needs another schedule")
    chunks = schedule.n_chunks if sizes is None else tuple(sizes)
    if sizes is not None and len(chunks) != schedule.n_chunks:
        raise ValueError(
            f"{name} has {schedule.n_chunks} chunks, but {len(chunks)} sizes are given"
        )
    return stage_costs(costs, chunks, schedule.placement), schedule


def predict(
    costs: StageCosts,
    schedule: Schedule,
    shared: Iterable[int] = (),
    conventions: Conventions | None = None,
    comm: Comm | None = None,
) -> Prediction:
    """Simulate one iteration with the layers of `shared` converted."""
    conventions = conventions or Conventions()
    if schedule.placement != costs.placement:
        raise ValueError(
            f"{schedule.name} places {schedule.n_chunks} chunks on ranks {schedule.placement}, "
            f"the costs on {costs.placement}"
        )
    loads, half = costs.chunk_loads(shared), conventions.backward / 2
    cost = Cost(
        loads,
        tuple(load * (half + conventions.recompute) for load in loads),
        tuple(load * half for load in loads),
        schedule.segment_shares(),
    )
    work = schedule.n_microbatches * (1 + conventions.backward) * math.fsum(loads)
    return Prediction(simulate(schedule, cost, comm), work)


def change(before: Prediction, after: Prediction) -> Change:
    """What is different after a conversion, under both meanings of MFU."""
    faster = before.time / after.time
    return Change(
        time=after.time / before.time - 1,
        mfu_recomputed=after.mfu / before.mfu - 1,
        mfu_fixed=faster - 1,
        limit=max(after.timeline.busy) / max(before.timeline.busy) - 1,
    )


@dataclass(frozen=True)
class HeadBudget:
    """How many conversions cancel a head that makes the last of equal stages heavy."""

    conversions: float  # V r / (2 C) for a head of V columns: head over saving
    budget: int  # the nearest whole number
    available: int  # layers that the last stage may convert

    @property
    def is_feasible(self) -> bool:
        return self.budget <= self.available

    @property
    def cancelled(self) -> float:
        """The part of the head that the last stage can cancel at most."""
        return min(1.0, self.available / self.conversions) if self.conversions else 1.0


def head_budget(costs: StageCosts, same_stage: bool = False) -> HeadBudget:
    """The budget in closed form: head over saving, rounded.

    Raises ValueError where the form does not hold: it needs equal layers, equally many on every
    stage, and nothing beside layers but on the last stage.
    """
    first, *others = costs.extras[:-1] or (0.0,)
    is_equal = len({*zip(costs.layers, costs.savings, costs.kinds, strict=True)}) == 1
    if not is_equal or len({len(chunk) for chunk in costs.chunks}) > 1 or any((first, *others)):
        raise ValueError(
            "the closed form needs equal layers, equally many per stage, and a head on the last "
            "stage only; use the exact planner"
        )
    if len(costs.chunks) != costs.n_stages or not costs.savings[0]:
        raise ValueError("the closed form needs one chunk per rank and layers that can share")
    conversions = costs.extras[-1] / costs.savings[-1]
    n_last = len(costs.chunks[-1])
    has_source = not same_stage and costs.n_stages > 1
    return HeadBudget(conversions, round(conversions), n_last if has_source else n_last - 1)


def vocabulary_parallel(costs: ModelCosts, placement: tuple[int, ...]) -> ModelCosts:
    """The head cut into equal parts, one per rank, on each rank's last chunk.

    What the ranks exchange for it (one or two all-reduces per micro-batch) is not counted.
    """
    n_ranks = max(placement) + 1
    last = [max(c for c, rank in enumerate(placement) if rank == r) for r in range(n_ranks)]
    extras = [extra for extra in costs.extras if extra.name != "head"]
    for extra in costs.extras:
        if extra.name == "head":
            extras += [Extra(f"head / {n_ranks}", extra.cost / n_ranks, chunk) for chunk in last]
    return replace(costs, extras=tuple(extras))
