r"""The best set of layers to convert, found exactly and fast. Chapter 4.

*Largest stage.* Stages do not influence each other: to bring stage i to at most T it needs a
fixed number of conversions, the largest savings first. Relieving the current maximum again and
again therefore meets every reachable T with the fewest conversions, and the best state on that
path is optimal.

*FIR* = P max / total rewards keeping the total high, so a stage should lose just enough. For
every reachable maximum T, each stage contributes the smallest saving that brings it to T with c
conversions (a table of subset sums, equal savings counted and not listed), and a dynamic program
over the stages spends the budget. Bounds leave few T to try. The table of a stage grows with the
different savings in it; real models have one or two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from kvpipe.balance.placements import (
    TIE,
    Search,
    check_budget,
    check_objective,
    largest_stage,
    relieving,
)
from kvpipe.balance.stages import StageCosts, fir, may_share

LARGEST_TABLE = 2**16  # subset sums of one stage


def exact(
    costs: StageCosts,
    budget: int,
    objective: str = "largest",
    allowed: Sequence[bool] | None = None,
) -> Search:
    """The set of at most `budget` allowed layers with the smallest objective.

    Of equally good sets the fewest conversions; inside a stage the deepest of equal layers.
    Raises ValueError where FIR would need a table of more than 65,536 subsets for one stage.
    """
    check_budget(budget, len(costs.layers))
    check_objective(objective)
    allowed = may_share(costs) if allowed is None else allowed
    layers = [
        sorted(
            (i for i, s in enumerate(costs.stage_of) if s == stage and allowed[i]),
            key=lambda layer: (-costs.savings[layer], -layer),
        )
        for stage in range(costs.n_stages)
    ]
    solve = _smallest_maximum if objective == "largest" else _smallest_fir
    shared = solve(costs, budget, layers)
    what = "largest stage" if objective == "largest" else "FIR"
    return relieving(costs, shared, "", f"no {budget} layers or fewer give a smaller {what}")


def _smallest_maximum(costs: StageCosts, budget: int, layers: list[list[int]]) -> list[int]:
    loads, taken = list(costs.loads()), [0] * len(layers)
    best, best_taken = max(loads), tuple(taken)
    for _ in range(budget):
        stage = largest_stage(loads)
        if taken[stage] == len(layers[stage]):
            break
        loads[stage] -= costs.savings[layers[stage][taken[stage]]]
        taken[stage] += 1
        if max(loads) < best * (1 - TIE):
            best, best_taken = max(loads), tuple(taken)
    return [layer for order, n in zip(layers, best_taken, strict=True) for layer in order[:n]]


@dataclass(frozen=True)
class _Table:
    """All subsets of one stage's layers, as (conversions, saving), equal savings merged."""

    base: float  # load without conversions
    layers: dict[float, list[int]]  # saving -> layers, the deepest first
    counts: np.ndarray  # row -> how many of each saving
    n: np.ndarray  # row -> conversions
    saved: np.ndarray  # row -> saving

    @classmethod
    def of(cls, costs: StageCosts, base: float, layers: list[int]) -> _Table:
        groups = Counter(costs.savings[layer] for layer in layers)
        size = math.prod(n + 1 for n in groups.values())
        if size > LARGEST_TABLE:
            raise ValueError(
                f"the exact FIR needs {size} subsets of one stage, more than {LARGEST_TABLE}: its "
                "layers save too many different amounts. Use the objective 'largest'"
            )
        counts = np.array(list(product(*(range(n + 1) for n in groups.values()))), dtype=int)
        counts = counts.reshape(size, len(groups))
        saved = counts @ np.array(list(groups), dtype=float)
        by_saving = {s: [i for i in layers if costs.savings[i] == s] for s in groups}
        return cls(base, by_saving, counts, counts.sum(axis=1), saved)

    def least(self, limits: np.ndarray, budget: int) -> np.ndarray:
        """(conversions, limit) -> the smallest saving that brings the load to the limit."""
        most = min(int(self.n.max()), budget)
        found = np.full((most + 1, len(limits)), np.inf)
        need = self.base - limits - TIE * self.base
        for c in range(most + 1):
            sums = np.sort(self.saved[self.n == c])
            at = np.searchsorted(sums, need)
            found[c] = np.where(at < len(sums), sums[np.minimum(at, len(sums) - 1)], np.inf)
        return found

    def choose(self, n: int, saved: float) -> list[int]:
        """The layers behind one row of `least`."""
        rows = np.flatnonzero((self.n == n) & (np.abs(self.saved - saved) <= TIE * self.base))
        picked = zip(self.layers.values(), self.counts[rows[0]], strict=True)
        return [layer for order, count in picked for layer in order[:count]]


def _smallest_fir(costs: StageCosts, budget: int, layers: list[list[int]]) -> list[int]:
    start = costs.loads()
    total, n_stages = math.fsum(start), costs.n_stages
    bases = zip(start, layers, strict=True)
    tables = [_Table.of(costs, base, order) for base, order in bases]
    lowest = max(table.base - table.saved.max() for table in tables)
    # No set can win with a maximum above the present one, as its total is no larger.
    known = _smallest_maximum(costs, budget, layers)
    best, best_shared = fir(start), []
    if costs.fir(known) < best * (1 - TIE):
        best, best_shared = costs.fir(known), known
    limits = np.unique(np.concatenate([table.base - table.saved for table in tables]))
    limits = limits[(limits >= lowest * (1 - TIE)) & (limits <= best * total / n_stages)]
    if not len(limits):
        return best_shared
    least = [table.least(limits, budget) for table in tables]
    bound = n_stages * limits / (total - sum(rows.min(axis=0) for rows in least))
    for at in np.argsort(bound, kind="stable"):
        if not bound[at] <= best * (1 + TIE):
            break
        chosen = _spend([rows[:, at] for rows in least], budget)
        pairs = zip(tables, chosen, strict=True) if chosen else ()
        shared = [layer for table, (n, saved) in pairs for layer in table.choose(n, saved)]
        if chosen and _is_better(costs.fir(shared), len(shared), best, len(best_shared)):
            best, best_shared = costs.fir(shared), shared
    return best_shared


def _is_better(value: float, n: int, best: float, best_n: int) -> bool:
    return value < best * (1 - TIE) or (value <= best * (1 + TIE) and n < best_n)


def _spend(columns: list[np.ndarray], budget: int) -> list[tuple[int, float]]:
    """The cheapest way to spend at most `budget` conversions: (conversions, saving) per stage.

    `columns[i][c]` is what stage i loses with c conversions; of equally cheap ways the fewest.
    Empty where the budget is too small.
    """
    least, choices = np.zeros(1), []
    for column in columns:
        size = min(len(least) + len(column) - 1, budget + 1)
        longer, choice = np.full(size, np.inf), np.zeros(size, dtype=int)
        for c, saved in enumerate(column):
            reach = min(len(least), size - c)
            if reach <= 0 or not np.isfinite(saved):
                continue
            candidate = least[:reach] + saved
            window = longer[c : c + reach]
            is_better = candidate < window
            window[is_better] = candidate[is_better]
            choice[c : c + reach][is_better] = c
        least = longer
        choices.append(choice)
    if not np.isfinite(least).any():
        return []
    left, picked = int(np.argmin(least)), []
    for column, choice in zip(reversed(columns), reversed(choices), strict=True):
        n = int(choice[left])
        picked.append((n, float(column[n])))
        left -= n
    return picked[::-1]
