"""Which layers to convert: fixed rules, Algorithm 1 as published, and a corrected one. Chapter 4.

Layers and stages count from 0. Nothing here is random, and no clock decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpipe.balance.stages import StageCosts, fir, may_share

OBJECTIVES = ("largest", "fir")
TIE = 1e-12  # relative: loads that differ by less are equal, so that rounding decides nothing


@dataclass(frozen=True)
class Step:
    """One conversion: what was converted, and what the stages look like afterwards."""

    layer: int
    stage: int
    largest: float  # load of the largest stage afterwards
    fir: float  # afterwards
    reason: str


@dataclass(frozen=True)
class Search:
    """The path of a search and where it ended."""

    shared: tuple[int, ...]  # what it returns, in model order
    steps: tuple[Step, ...]  # all conversions tried, in order
    stopped: str  # why it ended


def uniform(n_layers: int, budget: int) -> tuple[int, ...]:
    """`budget` layers spread evenly over the second half, both ends included."""
    first = n_layers // 2
    check_budget(budget, n_layers - first)
    if budget == 1:
        return (n_layers - 1,)
    width = n_layers - 1 - first
    return tuple(first + round(i * width / (budget - 1)) for i in range(budget))


def bipolar(n_layers: int, budget: int) -> tuple[int, ...]:
    """Half of the budget at the end, half from the middle on; an odd one goes to the end."""
    first, front = n_layers // 2, budget // 2
    check_budget(budget, n_layers - first)
    head, tail = range(first, first + front), range(n_layers - (budget - front), n_layers)
    return (*head, *tail)


def last_quarter(n_layers: int) -> tuple[int, ...]:
    """The last 25 % of the layers, whatever the stages."""
    return tuple(range(n_layers - round(n_layers / 4), n_layers))


def algorithm_1(
    costs: StageCosts, budget: int, epsilon: float = 0.05, alpha: float = 0.0
) -> Search:
    """Architecture-balanced placement, literally as published (KV-Pipe, Algorithm 1).

    While FIR > 1 + epsilon and fewer than `budget` layers are converted: look at the last stage;
    if it is within (1 + epsilon) of the mean, take the first largest stage instead; convert its
    deepest layer that is not yet converted and not above the depth guard `alpha`; stop if it has
    none. Returns the last state, which need not be the best one, and knows no sources: it may
    convert layer 0.
    """
    check_budget(budget, len(costs.layers))
    _check_epsilon(epsilon)
    n, steps, shared = len(costs.layers), [], set()
    stage_of, last = costs.stage_of, costs.n_stages - 1
    while True:
        loads = costs.loads(shared)
        mean = sum(loads) / len(loads)
        if fir(loads) <= 1 + epsilon:
            return _ended(shared, steps, f"FIR is within 1 + {epsilon:g}")
        if len(shared) == budget:
            return _ended(shared, steps, f"the budget of {budget} is used up")
        target, why = last, "the last stage is above the tolerance"
        if loads[last] <= (1 + epsilon) * mean:
            target, why = loads.index(max(loads)), "the last stage is within the tolerance"
        candidates = [
            layer
            for layer in range(n)
            if stage_of[layer] == target
            and layer not in shared
            and costs.savings[layer] > 0
            and (layer + 1) / n >= alpha
        ]
        if not candidates:
            return _ended(shared, steps, f"stage {target} has no layer left to convert")
        shared.add(max(candidates))
        steps.append(_step(costs, shared, max(candidates), f"{why}; its deepest layer left"))


def corrected(
    costs: StageCosts,
    budget: int,
    objective: str = "largest",
    allowed: Sequence[bool] | None = None,
) -> Search:
    """Algorithm 1 without its flaws, still greedy.

    It always relieves the largest stage (of equal ones the last), converts its deepest legal
    layer, needs no tolerance, and returns the best state it has seen: the smallest value of the
    objective, of equal ones the fewest conversions. It stops when the largest stage has no legal
    layer left, because then nothing can lower the maximum.
    """
    check_budget(budget, len(costs.layers))
    check_objective(objective)
    allowed = may_share(costs) if allowed is None else allowed
    stage_of, shared, steps = costs.stage_of, set(), []
    best, best_shared = value(costs.loads(), objective), ()
    stopped = f"the budget of {budget} is used up"
    while len(shared) < budget:
        target = largest_stage(costs.loads(shared))
        candidates = [
            layer
            for layer, stage in enumerate(stage_of)
            if stage == target and allowed[layer] and layer not in shared
        ]
        if not candidates:
            stopped = f"stage {target}, the largest, has no legal layer left"
            break
        reason = _excess(costs.loads(shared), target)
        shared.add(max(candidates))
        steps.append(_step(costs, shared, max(candidates), reason))
        now = value(costs.loads(shared), objective)
        if now < best * (1 - TIE):
            best, best_shared = now, tuple(sorted(shared))
    return Search(best_shared, tuple(steps), stopped)


def value(loads: Sequence[float], objective: str) -> float:
    """What is minimised: the largest load, or FIR."""
    return max(loads) if objective == "largest" else fir(loads)


def largest_stage(loads: Sequence[float]) -> int:
    """The stage with the largest load; of equal ones the last."""
    limit = max(loads) * (1 - TIE)
    return max(stage for stage, load in enumerate(loads) if load >= limit)


def relieving(costs: StageCosts, layers: Sequence[int], reason: str, stopped: str) -> Search:
    """A given set of layers as a path: always one on the largest stage that has any left."""
    stage_of, shared, steps, left = costs.stage_of, set(), [], set(layers)
    while left:
        loads = costs.loads(shared)
        layer = max(left, key=lambda layer: (loads[stage_of[layer]], layer))
        left.remove(layer)
        shared.add(layer)
        steps.append(_step(costs, shared, layer, reason or _excess(loads, stage_of[layer])))
    return _ended(shared, steps, stopped)


def _excess(loads: Sequence[float], stage: int) -> str:
    """How far a stage is above the mean, as the reason to relieve it."""
    above = loads[stage] * len(loads) / sum(loads) - 1
    return f"stage {stage} is {above:.1%} above the mean"


def check_budget(budget: int, limit: int) -> None:
    if not isinstance(budget, int) or isinstance(budget, bool) or not 1 <= budget <= limit:
        raise ValueError(f"the budget is {budget}; it must be from 1 to {limit} layers")


def check_objective(objective: str) -> None:
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is none of {', '.join(OBJECTIVES)}")


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise ValueError(f"epsilon is {epsilon}; the tolerance must be at least 0")


def _step(costs: StageCosts, shared: set[int], layer: int, reason: str) -> Step:
    loads = costs.loads(shared)
    return Step(layer, costs.stage_of[layer], max(loads), fir(loads), reason)


def _ended(shared: set[int], steps: list[Step], why: str) -> Search:
    return Search(tuple(sorted(shared)), tuple(steps), why)
