"""From a request to a plan: stages, search, sources, prediction. Chapter 4."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvpipe.balance.costs import ModelCosts
from kvpipe.balance.exact_planner import exact
from kvpipe.balance.placements import (
    Search,
    algorithm_1,
    bipolar,
    check_budget,
    check_objective,
    corrected,
    last_quarter,
    relieving,
    uniform,
)
from kvpipe.balance.planfile import Conversion, Plan
from kvpipe.balance.prediction import Change, change, predict, schedule_for
from kvpipe.balance.signal import calibrate
from kvpipe.balance.stages import StageCosts, kv_source, may_share
from kvpipe.pipeline import Schedule

METHODS = ("exact", "corrected", "algorithm-1", "uniform", "bipolar", "last", "last-quarter")


@dataclass(frozen=True)
class Request:
    """What is asked of the planner. Raises ValueError for options that contradict each other."""

    n_stages: int
    method: str = "exact"
    objective: str = "largest"  # or "fir"; for exact and corrected
    budget: int | None = None  # layers; a quarter of the model by default
    epsilon: float | None = None  # for algorithm-1; 0.05 by default
    alpha: float | None = None  # relative depth below which nothing is converted
    same_stage: bool = False  # only sources on the layer's own stage
    sizes: tuple[int, ...] | None = None  # layers per chunk, as even as possible by default
    schedule: str = "1f1b"
    n_microbatches: int = 32
    chunks_per_rank: int | None = None
    segments: int | None = None
    times: tuple[float, ...] | None = None  # measured, per stage, in place of FLOPs
    saving: float | None = None  # measured, of one conversion
    unit: str = "s"  # of the measured times

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method {self.method!r} is none of {', '.join(METHODS)}")
        check_objective(self.objective)
        searches = ("exact", "corrected")
        refused = {
            "epsilon": self.epsilon is not None and self.method != "algorithm-1",
            "alpha": self.alpha is not None and self.method not in (*searches, "algorithm-1"),
            "the objective 'fir'": self.objective == "fir" and self.method not in searches,
            "a budget": self.budget is not None and self.method == "last-quarter",
        }
        for what, is_given in refused.items():
            if is_given:
                raise ValueError(f"{what} contradicts the method {self.method}, which has no use "
                                 "for it")  # fmt: skip
        if self.saving is not None and self.times is None:
            raise ValueError("a measured saving needs measured stage times beside it")


def cut(costs: ModelCosts, request: Request) -> tuple[StageCosts, Schedule]:
    """The stages and the schedule of a request, in measured times where it has them."""
    stages, schedule = schedule_for(
        costs,
        request.n_stages,
        request.schedule,
        request.n_microbatches,
        sizes=request.sizes,
        chunks_per_rank=request.chunks_per_rank,
        segments=request.segments,
    )
    if request.times is not None:
        stages = calibrate(stages, request.times, request.saving)
    return stages, schedule


def search(stages: StageCosts, request: Request) -> Search:
    """Which layers the request's method converts, and on which path."""
    n = len(stages.layers)
    budget = request.budget if request.budget is not None else max(1, n // 4)
    check_budget(budget, n)
    alpha = request.alpha or 0.0
    allowed = may_share(stages, same_stage=request.same_stage, alpha=alpha)
    if request.method == "exact":
        return exact(stages, budget, request.objective, allowed)
    if request.method == "corrected":
        return corrected(stages, budget, request.objective, allowed)
    if request.method == "algorithm-1":
        epsilon = 0.05 if request.epsilon is None else request.epsilon
        return algorithm_1(stages, budget, epsilon, alpha)
    rules: Mapping[str, Callable[[], Sequence[int]]] = {
        "uniform": lambda: uniform(n, budget),
        "bipolar": lambda: bipolar(n, budget),
        "last": lambda: range(n - budget, n),
        "last-quarter": lambda: last_quarter(n),
    }
    layers = rules[request.method]()
    return relieving(
        stages, layers, f"chosen by its place: {request.method}", "the rule names no more layers"
    )


def make_plan(costs: ModelCosts, request: Request) -> Plan:
    """The plan alone. Raises ValueError where a chosen layer has no legal source."""
    return detailed_plan(costs, request)[0]


def detailed_plan(costs: ModelCosts, request: Request) -> tuple[Plan, Change, Search, StageCosts]:
    """The plan, its predicted change, the search that found it, and the stages it is for."""
    stages, schedule = cut(costs, request)
    found = search(stages, request)
    sources = kv_source(stages, found.shared, same_stage=request.same_stage)
    before = predict(stages, schedule, (), costs.conventions)
    effect = change(before, predict(stages, schedule, found.shared, costs.conventions))
    kept = [step for step in found.steps if step.layer in found.shared]
    plan = Plan(
        model=costs.name,
        fingerprint=costs.fingerprint,
        n_tokens=costs.n_tokens,
        conventions=costs.conventions,
        unit=costs.unit if request.times is None else request.unit,
        method=request.method,
        same_stage=request.same_stage,
        sizes=tuple(map(len, stages.chunks)),
        placement=stages.placement,
        kv_source=sources,
        loads_before=stages.loads(),
        loads_after=stages.loads(found.shared),
        conversions=tuple(
            Conversion(s.layer, sources[s.layer], s.stage, s.largest, s.fir, s.reason) for s in kept
        ),
        schedule=schedule.name,
        n_microbatches=schedule.n_microbatches,
        time_change=effect.time,
        mfu_recomputed_change=effect.mfu_recomputed,
        mfu_fixed_change=effect.mfu_fixed,
    )
    return plan, effect, found, stages
