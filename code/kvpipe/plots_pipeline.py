"""Pictures of pipeline schedules: who computes what, and when. Chapter 2; the grammar of `plots`.

A timeline comes from the simulator or from a measured run; the picture is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from kvpipe import plots
from kvpipe.pipeline import Timeline

COLORS = {
    "F": plots.FORWARD,
    "B": plots.BACKWARD,
    "I": plots.BACKWARD,
    "W": plots.WEIGHT_GRADIENT,
}
WIDTH, LEFT, RIGHT, ABOVE, BELOW, TITLE = 5.6, 0.42, 0.5, 0.3, 0.52, 0.27  # inches
BAR, LOWER, LOWEST = 0.86, 0.2, 0.2  # of a row: a bar, and how much lower those of later chunks
SPACE = 0.0022  # of the time axis: between two bars

Bar = tuple[float, float, float, float]  # left, right, middle, height


def timelines(
    panels: Mapping[str, Timeline],
    *,
    unit: str,
    limit: float | None = None,
    numbered: bool = False,
    marked: int | None = None,
    row_inches: float = 0.2,
) -> Axes:
    """Timelines above each other on one time axis: a row per rank, a bar per operation.

    Bars of a rank's later chunks are lower. `numbered` writes the micro-batch into each bar,
    `marked` outlines one micro-batch. What is grey is idle; the makespan stands at the end.
    """
    end = limit or max(timeline.makespan for timeline in panels.values())
    n_ranks = [len(timeline.spans) for timeline in panels.values()]
    title = TITLE / row_inches
    with plots.style():
        ax = _axes(row_inches * (sum(n_ranks) + title * len(panels)))
        ticks, top = {}, 0.0
        for (name, timeline), n in zip(panels.items(), n_ranks, strict=True):
            top += title
            _draw(ax, timeline, top, row_inches, SPACE * end, marked)
            ax.annotate(name, (0, top), (0, 3), textcoords="offset points")
            if numbered:
                _number(ax, timeline, top)
            ticks |= {top + rank + 0.5: str(rank) for rank in range(n)}
            top += n
        ax.set(xlim=(0, end), ylim=(top, 0), xlabel=f"time ({unit})", ylabel="rank")
        ax.set_yticks(list(ticks), list(ticks.values()))
        ax.tick_params(axis="y", length=0, labelsize=min(10, 45 * row_inches))
        ax.spines["left"].set_visible(False)
        _explain_colors(ax, panels.values())
        return ax


def _axes(height_inches: float) -> Axes:
    """Axes of exactly this height: a bar is a thick line, so its row must be known in points."""
    height = height_inches + ABOVE + BELOW
    ax = plots.canvas(WIDTH, height)[1]
    width = WIDTH - LEFT - RIGHT
    ax.set_position((LEFT / WIDTH, BELOW / height, width / WIDTH, height_inches / height))
    return ax


def _draw(
    ax: Axes, timeline: Timeline, top: float, row_inches: float, space: float, marked: int | None
) -> None:
    end, ranks = timeline.makespan, range(len(timeline.spans))
    idle = [(0.0, end, top + rank + 0.5, BAR) for rank in ranks]
    _lines(ax, idle, row_inches, color=plots.IDLE)
    bars = defaultdict(list)
    for kind, _, (left, right, *rest) in _bars(timeline, top):
        bars[COLORS[kind]].append((left, max(right - space, left), *rest))
    for color, group in bars.items():
        _lines(ax, group, row_inches, color=color)
    _outline(ax, [bar for _, microbatch, bar in _bars(timeline, top) if microbatch == marked])
    place = end, top + len(ranks) / 2
    ax.annotate(f"{end:.4g}", place, (4, 0), textcoords="offset points", va="center")


def _bars(timeline: Timeline, top: float) -> Iterable[tuple[str, int, Bar]]:
    """(kind, micro-batch, bar) of every operation."""
    for rank, spans in enumerate(timeline.spans):
        chunks = timeline.schedule.chunks(rank)
        for op, left, right in spans:
            height = max(BAR - LOWER * chunks.index(op.chunk), LOWEST)
            middle = top + rank + 0.5 + (BAR - height) / 2
            yield op.kind, op.microbatch, (left, right, middle, height)


def _lines(ax: Axes, bars: Sequence[Bar], row_inches: float, **look: object) -> None:
    """Bars of one colour as one path of thick lines: a page carries thousands of them."""
    by_height = defaultdict(list)
    for left, right, middle, height in bars:
        by_height[height] += [(left, middle), (right, middle)]
    for height, ends in by_height.items():
        path = Path(ends, [Path.MOVETO, Path.LINETO] * (len(ends) // 2))
        path.should_simplify = False
        width = height * row_inches * 72
        line = PathPatch(path, fill=False, linewidth=width, capstyle="butt", clip_on=False, **look)
        ax.add_patch(line)


def _outline(ax: Axes, bars: Sequence[Bar]) -> None:
    corners, codes = [], []
    for left, right, middle, height in bars:
        low, high = middle - height / 2, middle + height / 2
        corners += [(left, low), (right, low), (right, high), (left, high), (left, low)]
        codes += [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    if bars:
        look = {"color": plots.INK, "linewidth": 1.4, "clip_on": False}
        ax.add_patch(PathPatch(Path(corners, codes), fill=False, **look))


def _number(ax: Axes, timeline: Timeline, top: float) -> None:
    for _, microbatch, (left, right, middle, _) in _bars(timeline, top):
        ax.annotate(
            str(microbatch), ((left + right) / 2, middle), (0, -0.4), color="white", fontsize=8,
            textcoords="offset points", ha="center", va="center_baseline",
        )  # fmt: skip


def _explain_colors(ax: Axes, shown: Iterable[Timeline]) -> None:
    kinds = {span.op.kind for timeline in shown for spans in timeline.spans for span in spans}
    backward = {"B": "backward", "I": "input gradient", "BI": "backward or input gradient"}
    names = {
        "forward": "F" in kinds and plots.FORWARD,
        backward.get("".join(sorted(kinds & {"B", "I"})), ""): bool(kinds & {"B", "I"})
        and plots.BACKWARD,
        "weight gradient": "W" in kinds and plots.WEIGHT_GRADIENT,
        "idle": plots.IDLE,
    }
    patches = [Patch(color=color, label=name) for name, color in names.items() if color]
    ax.legend(
        handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(patches),
        handlelength=1.1, columnspacing=1.2, borderaxespad=0,
    )  # fmt: skip
