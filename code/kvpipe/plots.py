"""One visual grammar for the whole book: data in, `Axes` out, the same colour for the same thing.

`figure(ax, alt=…, caption=…)` shows the result in a notebook and in the book.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvpipe.svg import CELLS, INK, Picture
from kvpipe.svg import picture as figure

__all__ = [
    "BACKWARD", "EVICTED", "FORWARD", "IDLE", "INK", "KEPT", "MEASURED", "PREDICTED", "RANKS",
    "SERIES", "WEIGHT_GRADIENT", "Picture", "attention_map", "cache_growth", "canvas", "figure",
    "format_bytes", "heat_map", "layer_head_map", "predicted_and_measured", "roofline",
    "rotated_pair", "style",
]  # fmt: skip

# On white and on the dark theme each colour has a contrast of 3:1 or more, and any two stay apart
# for readers with deuteranopia or protanopia: test_plots.py computes both.
BLUE, VERMILLION, GREEN, VIOLET, TEAL, CRIMSON, AZURE, PLUM = (
    "#0072b2", "#d55e00", "#009e73", "#7046e8", "#1a9fb0", "#c4143f", "#4a8cf0", "#74606e",
)  # fmt: skip
FORWARD, BACKWARD, WEIGHT_GRADIENT = BLUE, VERMILLION, GREEN
IDLE = (INK, 0.12)
KEPT, EVICTED = GREEN, (INK, 0.25)
PREDICTED, MEASURED = (INK, 0.55), BLUE
RANKS = SERIES = (BLUE, VERMILLION, GREEN, VIOLET, TEAL, CRIMSON, AZURE, PLUM)
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))

STYLE = {
    "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": INK, "ytick.color": INK, "grid.color": INK, "grid.alpha": 0.15,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "axes.titlesize": 11, "axes.labelsize": 11, "xtick.labelsize": 10, "ytick.labelsize": 10,
    "font.size": 10.5, "legend.frameon": False, "legend.fontsize": 10, "lines.linewidth": 2,
    "axes.axisbelow": True, "figure.facecolor": "none", "axes.facecolor": "none",
    "hatch.color": INK, "hatch.linewidth": 0.6,
}  # fmt: skip


def style() -> matplotlib.RcParams:
    """Context manager: whatever is drawn inside follows the book's grammar."""
    return matplotlib.rc_context(STYLE)


def canvas(width: float = 5.2, height: float = 3.2, **subplots: object) -> tuple[Figure, Axes]:
    """A figure (size in inches) and its axes; `ncols=2` and the like give an array of axes.

    It belongs to no backend, so a notebook shows it only through `figure`.
    """
    with style():
        drawing = Figure(figsize=(width, height), layout="constrained")
        return drawing, drawing.subplots(**subplots)


def _styled(draw: Callable[..., Axes]) -> Callable[..., Axes]:
    """Give a plot function the book's style."""

    @wraps(draw)
    def drawn(*args: object, **kwargs: object) -> Axes:
        with style():
            return draw(*args, **kwargs)

    return drawn


@_styled
def rotated_pair(vectors: Mapping[str, tuple[float, float]], *, ax: Axes | None = None) -> Axes:
    """One pair of coordinates as arrows: label → (x, y). Angles are counted from the first axis."""
    ax = ax or canvas(3.6, 3.6)[1]
    longest = max(math.hypot(x, y) for x, y in vectors.values())
    turn = np.linspace(0, 2 * math.pi, 49)
    ax.plot(longest * np.cos(turn), longest * np.sin(turn), color=INK, alpha=0.3, linewidth=1)
    for (label, (x, y)), color, dashes in zip(vectors.items(), SERIES, _DASHES * 2, strict=False):
        ax.plot([0, x], [0, y], color=color, linestyle=dashes, label=label)
        ax.plot([x], [y], "o", color=color, markersize=7)
    ax.set(xlim=(-1.2 * longest, 1.2 * longest), ylim=(-1.2 * longest, 1.2 * longest))
    ax.set(aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
    ax.grid(True)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=2.5)
    return ax


@_styled
def heat_map(
    values: Sequence[Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    bar_label: str,
    limits: tuple[float, float] | None = None,
    n_levels: int = 10,
    ax: Axes | None = None,
) -> Axes:
    """A matrix as coloured cells with a scale of `n_levels` steps; NaN cells are hatched.

    Row 0 is at the top. Steps make a cell's colour readable on the scale.
    """
    cells = np.ma.masked_invalid(np.asarray(values, dtype=float))
    if cells.ndim != 2:
        raise ValueError(f"a heat map needs a matrix, got {cells.ndim} dimension(s)")
    n_rows, n_columns = cells.shape
    ax = ax or canvas(5.2, min(1.4 + 0.13 * n_rows, 6.4))[1]
    low, high = limits or (float(cells.min()), float(cells.max()))
    _hatch_empty_cells(ax, np.ma.getmaskarray(cells))
    mesh = ax.pcolormesh(cells, cmap=_steps(n_levels), norm=Normalize(low, high), gid=CELLS)
    ax.set(xlabel=xlabel, ylabel=ylabel, ylim=(n_rows, 0))
    _label_cells(ax, n_columns, n_rows)
    ax.spines[:].set_visible(True)
    bar = ax.figure.colorbar(mesh, ax=ax, label=bar_label, pad=0.02)
    bar.outline.set_visible(False)
    return ax


def _hatch_empty_cells(ax: Axes, is_empty: np.ndarray) -> None:
    """Hatch cells without a value, one stripe of neighbours at a time: no colour means that."""
    for row, columns in enumerate(is_empty):
        edges = np.flatnonzero(np.diff(columns, prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            look = {"facecolor": "none", "edgecolor": INK, "hatch": "//", "linewidth": 0}
            ax.add_patch(Rectangle((first, row), end - first, 1, **look))


def _steps(n_levels: int) -> Colormap:
    return matplotlib.colormaps["cividis"].resampled(n_levels)


def _label_cells(ax: Axes, n_columns: int, n_rows: int) -> None:
    """Put a tick with the cell's index at the centre of about every eighth cell."""
    for axis, count in ((ax.xaxis, n_columns), (ax.yaxis, n_rows)):
        step = max(1, math.ceil(count / 10))
        axis.set_major_locator(FixedLocator([index + 0.5 for index in range(0, count, step)]))
        axis.set_major_formatter(FuncFormatter(lambda place, _: f"{place - 0.5:.0f}"))


@_styled
def attention_map(
    weights: Sequence[Sequence[float]], tokens: Sequence[str], *, ax: Axes | None = None
) -> Axes:
    """Attention weights of one head: a row per query token, a column per key token.

    Keys after the query are hidden from it: their cells are hatched.
    """
    if np.shape(weights) != (len(tokens), len(tokens)):
        raise ValueError(
            f"{len(tokens)} tokens need a {len(tokens)} × {len(tokens)} matrix of weights, "
            f"got {np.shape(weights)}"
        )
    seen = np.where(np.tri(len(tokens), dtype=bool), weights, np.nan)
    ax = heat_map(
        seen, xlabel="key token", ylabel="query token", bar_label="attention weight",
        limits=(0, 1), ax=ax or canvas(5.2, 4.4)[1],
    )  # fmt: skip
    places = [index + 0.5 for index in range(len(tokens))]
    names = [token.replace(" ", "·").replace("\n", "⏎") for token in tokens]
    ax.set_xticks(places, names, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(places, names)
    return ax


@_styled
def layer_head_map(
    values: Sequence[Sequence[float]], *, bar_label: str, ax: Axes | None = None
) -> Axes:
    """One number per layer (row) and head (column), such as the entropy of attention in nats."""
    return heat_map(values, xlabel="query head", ylabel="layer", bar_label=bar_label, ax=ax)


@_styled
def cache_growth(
    contexts: Sequence[int],
    cache_bytes: Mapping[str, Sequence[float]],
    weight_bytes: Mapping[str, float] | None = None,
    *,
    ylim: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """KV-cache size against context, a line per model; a dot where it outweighs the weights."""
    ax = ax or canvas(5.2, 3.8)[1]
    for (name, sizes), color, dashes in zip(cache_bytes.items(), SERIES, _DASHES * 2, strict=False):
        ax.plot(contexts, sizes, color=color, linestyle=dashes, label=name)
        weights = (weight_bytes or {}).get(name)
        if weights is not None and sizes[0] <= weights <= sizes[-1]:
            crossing = np.interp(math.log(weights), np.log(sizes), np.log(contexts))
            ax.plot([math.exp(crossing)], [weights], "o", color=color, markersize=8)
    ax.set(xscale="log", yscale="log", xlabel="context (tokens)", ylabel="KV cache (bytes)")
    if ylim:
        ax.set_ylim(ylim)
    _binary_ticks(ax.xaxis, ax.get_xlim(), format_count)
    _binary_ticks(ax.yaxis, ax.get_ylim(), format_bytes)
    ax.grid(True)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=2.5)
    return ax


def _binary_ticks(
    axis: matplotlib.axis.Axis, limits: tuple[float, float], label: Callable[[float], str]
) -> None:
    """Ticks at powers of two, at most about seven of them."""
    low, high = (math.log2(limit) for limit in limits)
    step = max(1, math.ceil((high - low) / 7))
    first = math.ceil(low / step) * step
    ticks = [2.0**power for power in range(first, math.floor(high) + 1, step)]
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))


def format_bytes(n_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps the number at 1 or more: 131072 → 128 KiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(int(math.log2(max(n_bytes, 1)) // 10), 0), len(units) - 1)
    return f"{n_bytes / 1024**power:.4g} {units[power]}"


def format_count(count: float) -> str:
    """A count in thousands of 1,024, as context lengths are: 8192 → 8K."""
    power = 2 if count >= 1024**2 else 1 if count >= 1024 else 0
    return f"{count / 1024**power:.4g}{('', 'K', 'M')[power]}"


@_styled
def roofline(
    peak_flops: float,
    bandwidth_bytes: float,
    points: Mapping[str, tuple[float, float]],
    *,
    ax: Axes | None = None,
) -> Axes:
    """The bound on FLOP/s against FLOPs per byte, and points: label → (intensity, FLOP/s)."""
    ax = ax or canvas(5.2, 3.6)[1]
    ridge = peak_flops / bandwidth_bytes
    intensities = [ridge, *(intensity for intensity, _ in points.values())]
    x = np.geomspace(min(intensities) / 4, max(intensities) * 4, 65)
    bound = np.minimum(x * bandwidth_bytes, peak_flops)
    ax.plot(x, bound, color=INK, label="bound of this machine")
    ax.axvline(ridge, color=INK, alpha=0.4, linewidth=1, linestyle=":")
    ax.annotate("memory", (ridge, bound[0]), (-6, 0), textcoords="offset points", ha="right")
    ax.annotate("arithmetic", (ridge, bound[0]), (6, 0), textcoords="offset points")
    for (name, (intensity, flops)), color, marker in zip(
        points.items(), SERIES, "osD^v<>p", strict=False
    ):
        ax.plot([intensity], [flops], marker, color=color, markersize=8, label=name)
    ax.set(xscale="log", yscale="log")
    ax.set(xlabel="arithmetic intensity (FLOPs per byte)", ylabel="speed (FLOP/s)")
    ax.grid(True)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, handlelength=2)
    return ax


@_styled
def predicted_and_measured(
    predicted: Mapping[str, float],
    measured: Mapping[str, float],
    *,
    unit: str,
    ax: Axes | None = None,
) -> Axes:
    """Two bars per label, the prediction hollow above the measurement, each with its value."""
    if predicted.keys() != measured.keys():
        different = sorted(predicted.keys() ^ measured.keys())
        raise ValueError(f"predicted and measured differ in their labels: {', '.join(different)}")
    ax = ax or canvas(5.2, 1.2 + 0.62 * len(predicted))[1]
    rows = np.arange(len(predicted))
    hollow = {"facecolor": "none", "edgecolor": PREDICTED, "linewidth": 1.4, "linestyle": "--"}
    looks = (
        (-0.2, "predicted", predicted, hollow),
        (0.2, "measured", measured, {"color": MEASURED}),
    )
    for shift, name, numbers, look in looks:
        values = [numbers[label] for label in predicted]
        drawn = ax.barh(rows + shift, values, height=0.36, label=name, **look)
        ax.bar_label(drawn, [f"{value:.3g}" for value in values], padding=4)
    ax.set(yticks=rows, yticklabels=list(predicted), xlabel=unit, ylim=(len(rows) - 0.5, -0.5))
    ax.margins(x=0.15)
    ax.grid(True, axis="x")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return ax
