"""Pictures of stage loads and of what a plan is worth. Chapter 4; the grammar of `plots`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from kvpipe import plots
from kvpipe.balance import Alternative

HOLLOW = {"facecolor": "none", "edgecolor": plots.PREDICTED, "linewidth": 1.2}


def stage_bars(
    loads: Mapping[str, Sequence[float]], *, unit: str, limit: float | None = None
) -> Axes:
    """Loads per stage side by side, and each set's mean as a dashed line of its colour.

    The first of several sets is hollow: what it was before. `limit` fixes the top of the axis.
    """
    names, n_stages = list(loads), len(next(iter(loads.values())))
    if any(len(row) != n_stages for row in loads.values()):
        raise ValueError(f"{', '.join(names)} have different numbers of stages")
    with plots.style():
        ax = plots.canvas(max(3.6, 1.4 + 0.5 * n_stages), 2.9)[1]
        width = 0.82 / len(names)
        for i, (name, row) in enumerate(loads.items()):
            is_before = len(names) > 1 and i == 0
            color = plots.PREDICTED if is_before else plots.SERIES[max(0, i - 1)]
            look = HOLLOW if is_before else {"color": color}
            middle = np.arange(n_stages) + width * (i - (len(names) - 1) / 2)
            ax.bar(middle, row, width * 0.92, label=name, **look)
            mean = math.fsum(row) / n_stages
            ax.axhline(mean, color=color, linestyle="--", linewidth=1)
        ax.set(xlabel="stage", ylabel=f"load ({unit})", xticks=range(n_stages))
        ax.set_ylim(0, limit or 1.08 * max(map(max, loads.values())))
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(names))
        return ax


def method_bars(found: Sequence[Alternative]) -> Axes:
    """The predicted change of iteration time of each way to balance, in per cent."""
    with plots.style():
        ax = plots.canvas(5.6, 0.8 + 0.34 * len(found))[1]
        rows = np.arange(len(found))
        changes = [100 * row.change.time for row in found]
        drawn = ax.barh(rows, changes, height=0.62, color=plots.BLUE)
        ax.bar_label(drawn, [f"{change:+.1f} %" for change in changes], padding=4)
        ax.set(yticks=rows, yticklabels=[row.name for row in found])
        ax.set(xlabel="predicted change of iteration time (%)", ylim=(len(rows) - 0.5, -0.5))
        ax.axvline(0, color=plots.INK, linewidth=0.8)
        span = max(*changes, 0) - min(*changes, 0)
        ax.set_xlim(min(*changes, 0) - 0.22 * span, max(*changes, 0) + 0.22 * span)
        ax.grid(True, axis="x")
        return ax


def budget_sweep(found: Sequence[Alternative]) -> Axes:
    """FIR (left), and the change of time and of both kinds of MFU (right), against the budget."""
    budgets = [len(row.shared) for row in found]
    curves = {
        "iteration time": [100 * row.change.time for row in found],
        "MFU, FLOPs recomputed": [100 * row.change.mfu_recomputed for row in found],
        "MFU, FLOPs fixed": [100 * row.change.mfu_fixed for row in found],
    }
    with plots.style():
        left, right = plots.canvas(7.4, 3.1, ncols=2)[1]
        left.plot(budgets, [row.fir for row in found], "o-", color=plots.INK, markersize=4)
        left.set(xlabel="converted layers", ylabel="FIR")
        for (name, values), color, marker in zip(curves.items(), plots.SERIES, "osD", strict=False):
            right.plot(budgets, values, marker + "-", color=color, markersize=4, label=name)
        right.axhline(0, color=plots.INK, linewidth=0.8)
        right.set(xlabel="converted layers", ylabel="predicted change (%)")
        right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        for ax in (left, right):
            ax.grid(True)
        return left
