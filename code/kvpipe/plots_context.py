"""Pictures of one sequence on many ranks: who holds what, who works when. Chapter 3; `plots`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import NullLocator

from kvpipe import plots
from kvpipe.context import Partition, source, tiles

EARLIER = 0.35  # how strong the colour of a pair computed before is
NODE = 12  # points: radius of a rank
INSIDE = 0.4, 0.5  # of the circle's radius, across and up: where a rank's label stands
MARKERS = "osD^v"

Cell = tuple[int, int]  # key token (column), query token (row)


def ring_step(partition: Partition, step: int, causal: bool = True) -> Axes:
    """One step of the ring: the ranks in a circle (left), the pairs they compute (right).

    Raises ValueError for a step that the ring does not have.
    """
    if not 0 <= step < partition.n_ranks:
        raise ValueError(f"step {step} is outside 0..{partition.n_ranks - 1}")
    with plots.style():
        circle, pairs = plots.canvas(5.6, 3.0, ncols=2, width_ratios=(0.8, 1))[1]
        _draw_circle(circle, partition, step, causal)
        _draw_pairs(pairs, partition, step, causal)
        return pairs


def _draw_circle(ax: Axes, partition: Partition, step: int, causal: bool) -> None:
    P = partition.n_ranks
    places = [(math.sin(turn), math.cos(turn)) for turn in (2 * math.pi * r / P for r in range(P))]
    computed = [tile.pairs for tile in tiles(partition, causal)[step]]
    for rank, (x, y) in enumerate(places):
        if step < P - 1:
            _arrow(ax, (x, y), places[(rank + 1) % P])
        ax.plot([x], [y], "o", color=plots.RANKS[rank], markersize=2 * NODE)
        ax.annotate(
            str(rank), (x, y), (0, -0.5), textcoords="offset points", color="white",
            fontsize=13, fontweight="bold", ha="center", va="center_baseline",
        )  # fmt: skip
        lines = f"keys of {source(rank, step, P)}\n{_words(computed[rank])}"
        ax.text(INSIDE[0] * x, INSIDE[1] * y, lines, ha="center", va="center", fontsize=9)
    ax.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    ax.set_title(f"step {step}")
    ax.axis("off")


def _words(n_pairs: int) -> str:
    return f"{n_pairs} pairs" if n_pairs else "waits"


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {
        "arrowstyle": "->", "color": plots.INK, "alpha": 0.6, "shrinkA": NODE + 2,
        "shrinkB": NODE + 2, "connectionstyle": "arc3,rad=-0.2",
    }  # fmt: skip
    ax.annotate("", end, start, arrowprops=look)


def _draw_pairs(ax: Axes, partition: Partition, step: int, causal: bool) -> None:
    S = partition.n_tokens
    groups = _pairs(partition, step, causal)
    for (when, rank), cells in groups.items():
        look = {
            "now": {"color": plots.RANKS[rank]},
            "before": {"color": (plots.RANKS[rank], EARLIER)},
            "later": {"color": plots.IDLE},
            "skipped": {"facecolor": "none", "edgecolor": plots.INK, "hatch": "////"},
        }[when]
        ax.add_patch(PathPatch(_runs(cells), linewidth=0, gid=f"{when} {rank}", **look))
    ax.set(xlim=(0, S), ylim=(S, 0), aspect="equal", xlabel="key token", ylabel="query token")
    ticks = range(0, S, max(1, S // 4))
    ax.set_xticks([t + 0.5 for t in ticks], [str(t) for t in ticks])
    ax.set_yticks([t + 0.5 for t in ticks], [str(t) for t in ticks])
    ax.spines[:].set_visible(True)
    _explain_pairs(ax)


def _pairs(partition: Partition, step: int, causal: bool) -> dict[tuple[str, int], list[Cell]]:
    """(when, rank of the query) -> cells. "skipped" are pairs in hand that nobody may see."""
    P, owners = partition.n_ranks, [partition.owner(t) for t in range(partition.n_tokens)]
    found: dict[tuple[str, int], list[Cell]] = {}
    for query, rank in enumerate(owners):
        for key, origin in enumerate(owners):
            turn = (rank - origin) % P  # the step at which this block is in hand
            when = "now" if turn == step else "before" if turn < step else "later"
            if causal and key > query:
                if when != "now":
                    continue
                when = "skipped"
            found.setdefault((when, rank), []).append((key, query))
    return found


def _runs(cells: Sequence[Cell]) -> Path:
    """One path for many cells: neighbours in a row become one rectangle."""
    corners, codes = [], []
    runs: list[list[int]] = []  # first column, column after the last, row
    for key, query in cells:
        if runs and runs[-1][1:] == [key, query]:
            runs[-1][1] += 1
        else:
            runs.append([key, key + 1, query])
    for left, right, top in runs:
        corners += [(left, top), (right, top), (right, top + 1), (left, top + 1), (left, top)]
        codes += [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY]
    return Path(corners, codes)


def _explain_pairs(ax: Axes) -> None:
    color = plots.RANKS[0]
    patches = [
        Patch(color=color, label="now"),
        Patch(color=(color, EARLIER), label="before"),
        Patch(color=plots.IDLE, label="later"),
        Patch(facecolor="none", edgecolor=plots.INK, hatch="////", linewidth=0, label="skipped"),
    ]
    ax.legend(
        handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4,
        handlelength=0.9, columnspacing=0.7, handletextpad=0.4, borderaxespad=0.2,
    )  # fmt: skip


def turns(panels: Mapping[str, Sequence[Sequence[int]]]) -> Axes:
    """One turn of the ring per panel: bars are pairs computed, grey is waiting for the slowest.

    A panel is `kvpipe.context.pairs_per_step`: [step][rank] -> pairs.
    """
    rows = [len(steps[0]) for steps in panels.values()]
    with plots.style():
        ax = plots.canvas(5.6, 1.0 + 0.22 * (sum(rows) + 1.6 * len(rows)))[1]
        ticks, top = {}, 0.0
        for (name, steps), n_ranks in zip(panels.items(), rows, strict=True):
            top += 1.6
            ax.annotate(name, (0, top), (0, 3), textcoords="offset points")
            end = _draw_turn(ax, steps, top)
            place = end, top + n_ranks / 2
            ax.annotate(f"{end:,}", place, (4, 0), textcoords="offset points", va="center")
            ticks |= {top + rank + 0.5: str(rank) for rank in range(n_ranks)}
            top += n_ranks
        longest = max(sum(map(max, steps)) for steps in panels.values())
        ax.set(xlim=(0, 1.12 * longest), ylim=(top, 0), ylabel="rank")
        ax.set_xlabel("time, in pairs of query and key")
        ax.set_yticks(list(ticks), list(ticks.values()))
        ax.tick_params(axis="y", length=0, labelsize=9)
        ax.spines["left"].set_visible(False)
        patches = [Patch(color=plots.FORWARD, label="computes"), Patch(color=plots.IDLE)]
        patches[1].set_label("waits")
        ax.legend(handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        return ax


def _draw_turn(ax: Axes, steps: Sequence[Sequence[int]], top: float) -> int:
    """Bars of one panel; returns when the turn ends."""
    start = 0
    for pairs in steps:
        for rank, n in enumerate(pairs):
            place = top + rank + 0.07
            ax.add_patch(Rectangle((start, place), max(pairs), 0.86, color=plots.IDLE, lw=0))
            ax.add_patch(Rectangle((start, place), n, 0.86, color=plots.FORWARD, lw=0))
        start += max(pairs)
        ax.plot([start, start], [top, top + len(pairs)], color=plots.INK, linewidth=0.8)
    return start


def over_ranks(
    counts: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    ylabel: str,
    xlabel: str = "ranks",
    points: Mapping[str, tuple[float, float]] | None = None,
    limits: tuple[float, float] | None = None,
) -> Axes:
    """Numbers that depend on how many ranks (or blocks) there are, a line each, on doubling counts.

    `points` are single values, label -> (count, value), hollow, in the order of the curves.
    """
    for name, values in curves.items():
        if len(values) != len(counts):
            raise ValueError(f"{name!r} has {len(values)} values for {len(counts)} counts")
    with plots.style():
        ax = plots.canvas(5.2, 3.4)[1]
        looks = zip(plots.SERIES, MARKERS, strict=False)
        for (name, values), (color, marker) in zip(curves.items(), looks, strict=False):
            ax.plot(counts, values, marker + "-", color=color, markersize=5, label=name)
        for (name, (x, y)), color, marker in zip(
            (points or {}).items(), plots.SERIES, MARKERS, strict=False
        ):
            look = {"markerfacecolor": "none", "markersize": 10, "markeredgewidth": 1.8}
            ax.plot([x], [y], marker, color=color, linestyle="none", label=name, **look)
        ax.set_xscale("log", base=2)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        ax.set_xticks(counts, [str(n) for n in counts])
        ax.xaxis.set_minor_locator(NullLocator())
        if limits:
            ax.set_ylim(*limits)
        ax.grid(True)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=2)
        return ax
