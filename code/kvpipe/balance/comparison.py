"""A plan weighed against its alternatives, and when it is not worth it. Chapter 4.

A planner that always answers "share KV" is an advertisement: an uneven split and a
vocabulary-parallel head change no result, so they are predicted on equal terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvpipe.balance.costs import ModelCosts
from kvpipe.balance.effects import Border, borders, cache_bytes_saved
from kvpipe.balance.planfile import Plan
from kvpipe.balance.planner import Request, cut, detailed_plan, search
from kvpipe.balance.prediction import (
    Change,
    HeadBudget,
    Prediction,
    change,
    head_budget,
    predict,
    vocabulary_parallel,
)
from kvpipe.balance.splits import best_split
from kvpipe.balance.stages import StageCosts, may_share, ranges
from kvpipe.pipeline import Schedule

WORTH = 0.02  # predicted gain in time below which a lossy change is not recommended


@dataclass(frozen=True)
class Alternative:
    """One way to balance the stages, predicted on equal terms."""

    name: str
    sizes: tuple[int, ...]
    shared: tuple[int, ...]
    loads: tuple[float, ...]
    fir: float
    change: Change  # against the even split without sharing
    is_lossless: bool  # computes the same function
    note: str = ""


@dataclass(frozen=True)
class Study:
    """A plan with all that belongs beside it."""

    plan: Plan
    change: Change
    stopped: str  # why the search ended
    alternatives: tuple[Alternative, ...]  # the fastest first; the plan is among them
    borders: tuple[Border, ...]
    cache_bytes_saved: int  # per token, at 2 bytes per element
    head: HeadBudget | None  # None where the closed form does not hold
    warnings: tuple[str, ...] = field(default=())


def study(costs: ModelCosts, request: Request) -> Study:
    """The plan with alternatives, traffic, cache and warnings."""
    plan, effect, found, stages = detailed_plan(costs, request)
    try:
        head = head_budget(stages, request.same_stage)
    except ValueError:
        head = None
    result = Study(
        plan,
        effect,
        found.stopped,
        alternatives(costs, request),
        borders(costs, stages, plan.kv_source),
        cache_bytes_saved(costs, plan.kv_source),
        head,
    )
    return replace(result, warnings=tuple(_warnings(result)))


def alternatives(costs: ModelCosts, request: Request) -> tuple[Alternative, ...]:
    """Sharing, an uneven split, a vocabulary-parallel head, and both with sharing; fastest first.

    An uneven split is offered where each rank holds one chunk and the request fixes no sizes. A
    vocabulary-parallel head is offered under FLOPs, since measured stage times do not say what
    the head alone takes. Sharing beside them uses the exact planner for the largest stage.
    """
    stages, schedule = cut(costs, request)
    base = predict(stages, schedule, (), costs.conventions)
    exactly = replace(request, method="exact", objective="largest", epsilon=None)

    def weigh(name: str, stages: StageCosts, shared: Sequence[int], note: str = "") -> Alternative:
        effect = change(base, predict(stages, schedule, shared, costs.conventions))
        sizes, loads = tuple(map(len, stages.chunks)), stages.loads(shared)
        shared = tuple(shared)
        return Alternative(name, sizes, shared, loads, stages.fir(shared), effect, not shared, note)

    found = [weigh("even split" if request.sizes is None else "given split", stages, ())]
    found.append(weigh("share KV", stages, search(stages, request).shared))
    for name, other, note in _lossless(costs, request, stages):
        found.append(weigh(name, other, (), note))
        if not note.startswith("none better"):
            shared = search(other, exactly).shared
            found.append(weigh(f"{name} + share KV", other, shared, note))
    return tuple(sorted(found, key=lambda alternative: alternative.change.time))


def _lossless(
    costs: ModelCosts, request: Request, stages: StageCosts
) -> list[tuple[str, StageCosts, str]]:
    found = []
    if request.sizes is None and len(stages.chunks) == stages.n_stages:
        sizes = best_split(stages.layers, stages.extras)
        if sizes == tuple(map(len, stages.chunks)):
            found.append(("uneven split", stages, "none better than the even split"))
        else:
            found.append(("uneven split", stages.cut(ranges(sizes)), ""))
    if request.times is None and any(extra.name == "head" for extra in costs.extras):
        cheaper = vocabulary_parallel(costs, stages.placement)
        spread, _ = cut(cheaper, request)
        note = "one or two all-reduces per micro-batch are not counted"
        found.append(("vocabulary-parallel head", spread, note))
    return found


def sweep(costs: ModelCosts, request: Request, budgets: Sequence[int]) -> list[Alternative]:
    """The same request with every budget; budget 0 is the unconverted model."""
    stages, schedule = cut(costs, request)
    weigh, found = _Scale.of(costs, stages, schedule), []
    for budget in budgets:
        shared = search(stages, replace(request, budget=budget)).shared if budget else ()
        found.append(weigh(f"{budget} layers", stages, shared))
    return found


def compare(costs: ModelCosts, request: Request) -> list[Alternative]:
    """Every method on the same stages, with the same budget, guards and sources; fastest first.

    Algorithm 1 runs with the request's tolerance, or with 0.10, 0.05 and 0.02. What a method
    converts without a legal source is left out, as its note says.
    """
    stages, schedule = cut(costs, request)
    weigh = _Scale.of(costs, stages, schedule)
    bare = replace(request, objective="largest", epsilon=None, alpha=None)
    guarded = replace(bare, method="exact", alpha=request.alpha)
    epsilons = (0.10, 0.05, 0.02) if request.epsilon is None else (request.epsilon,)
    trials = {
        "exact, largest stage": guarded,
        "exact, FIR": replace(guarded, objective="fir"),
        "corrected": replace(guarded, method="corrected"),
        **{
            f"Algorithm 1, tolerance {epsilon:g}": replace(
                guarded, method="algorithm-1", epsilon=epsilon
            )
            for epsilon in epsilons
        },
        "uniform": replace(bare, method="uniform"),
        "bipolar": replace(bare, method="bipolar"),
        "last layers": replace(bare, method="last"),
        "last quarter": replace(bare, method="last-quarter", budget=None),
    }
    allowed = may_share(stages, same_stage=request.same_stage)
    found = [weigh("no sharing", stages, ())]
    for name, trial in trials.items():
        shared = search(stages, trial).shared
        legal = [layer for layer in shared if allowed[layer]]
        left_out = [layer for layer in shared if not allowed[layer]]
        note = f"without layers {left_out}, which have no legal source" if left_out else ""
        found.append(weigh(name, stages, legal, note))
    return sorted(found, key=lambda row: row.change.time)


@dataclass(frozen=True)
class _Scale:
    """Weighs stages and shared layers against the same stages without sharing."""

    costs: ModelCosts
    schedule: Schedule
    base: Prediction

    @classmethod
    def of(cls, costs: ModelCosts, stages: StageCosts, schedule: Schedule) -> _Scale:
        return cls(costs, schedule, predict(stages, schedule, (), costs.conventions))

    def __call__(
        self, name: str, stages: StageCosts, shared: Sequence[int], note: str = ""
    ) -> Alternative:
        effect = change(self.base, predict(stages, self.schedule, shared, self.costs.conventions))
        sizes, loads, shared = tuple(map(len, stages.chunks)), stages.loads(shared), tuple(shared)
        return Alternative(name, sizes, shared, loads, stages.fir(shared), effect, not shared, note)


def _warnings(study: Study) -> list[str]:
    plan, gain, found = study.plan, -study.change.time, []
    n = len(plan.kv_source)
    if not plan.shared:
        found.append(f"nothing is converted: {study.stopped}")
    elif gain < WORTH:
        found.append(
            f"not worth it: {len(plan.shared)} converted layers save {gain:.1%} of the time, and "
            "sharing changes what the model computes"
        )
    better = [a for a in study.alternatives if a.is_lossless and a.change.time <= study.change.time]
    if better and better[0].change.time < -1e-9:
        found.append(
            f"{better[0].name} changes no result and saves {-better[0].change.time:.1%}, "
            f"the plan {gain:.1%}"
        )
    if study.head and not study.head.is_feasible:
        found.append(
            f"cancelling the head would take {study.head.conversions:.1f} conversions; the last "
            f"stage has {study.head.available} layers that can, {study.head.cancelled:.1%} of it"
        )
    crossing = [border for border in study.borders if border.kv_bytes]
    if crossing:
        worst = max(crossing, key=lambda border: border.ratio)
        found.append(
            f"keys and values cross {len(crossing)} stage borders; after stage "
            f"{plan.placement[worst.chunk]} a micro-batch sends {worst.ratio:.1f} times the bytes. "
            "Allow only sources of the same stage to avoid it"
        )
    early = [layer for layer in plan.shared if layer < n // 2]
    if early:
        found.append(
            f"layers {early} lie in the first half of the model, where sharing costs most quality"
        )
    return found
