"""Timelines show every operation once, where and when it ran, at a weight a page can carry."""

import re

import pytest
from matplotlib.colors import to_rgba

from kvpipe import plots, plots_pipeline
from kvpipe.pipeline import Cost, build, round_robin, simulate
from kvpipe.plots_pipeline import timelines


def timeline(name, n_ranks=3, n_microbatches=5, **options):
    return simulate(build(name, n_ranks, n_microbatches, **options))


def bars(ax, color):
    """(left, right) of every bar of a colour, from the drawn paths."""
    found = []
    for patch in ax.patches:
        if patch.get_edgecolor() == to_rgba(color):
            ends = patch.get_path().vertices
            found += [
                (left, right) for (left, _), (right, _) in zip(ends[::2], ends[1::2], strict=True)
            ]
    return sorted(found)


@pytest.mark.parametrize(
    ("name", "options"),
    [("gpipe", {}), ("1f1b", {}), ("interleaved-1f1b", {"chunks_per_rank": 3}), ("zb-h1", {}),
     ("zbv", {}), ("seq1f1b", {"segments": 2})],
)  # fmt: skip
def test_every_operation_is_one_bar_of_its_colour_from_start_to_end(name, options):
    shown = timeline(name, **options)
    ax = timelines({"it": shown}, unit="steps")
    for color in {plots.FORWARD, plots.BACKWARD, plots.WEIGHT_GRADIENT}:
        spans = sorted(
            (span.start, span.end)
            for rank in shown.spans
            for span in rank
            if plots_pipeline.COLORS[span.op.kind] == color
        )
        drawn = bars(ax, color)
        assert len(drawn) == len(spans)
        gap = plots_pipeline.SPACE * shown.makespan
        for (left, right), (start, end) in zip(drawn, spans, strict=True):
            assert left == pytest.approx(start)
            assert right == pytest.approx(end - gap)


def test_the_two_halves_of_a_backward_have_the_colours_of_the_book():
    shown = timeline("zb-h1")
    ax = timelines({"it": shown}, unit="steps")
    n_each = 3 * 5
    colors = (plots.FORWARD, plots.BACKWARD, plots.WEIGHT_GRADIENT)
    assert [len(bars(ax, color)) for color in colors] == [n_each] * 3
    first_input_gradient = next(span for span in shown.spans[2] if span.op.kind == "I")
    assert first_input_gradient.start in [left for left, _ in bars(ax, plots.BACKWARD)]


def test_rows_are_ranks_and_later_chunks_are_lower():
    shown = timeline("interleaved-1f1b", 2, 2, chunks_per_rank=2)
    ax = timelines({"it": shown}, unit="steps", row_inches=0.5)
    widths = {
        round(patch.get_linewidth() / (0.5 * 72), 2)
        for patch in ax.patches
        if patch.get_edgecolor() == to_rgba(plots.FORWARD)
    }
    assert widths == {plots_pipeline.BAR, round(plots_pipeline.BAR - plots_pipeline.LOWER, 2)}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "1"]


def test_a_bar_is_as_thick_as_its_row_allows():
    ax = timelines({"it": timeline("1f1b")}, unit="steps", row_inches=0.3)
    ax.figure.canvas.draw()
    (_, below), (_, above) = ax.transData.transform([(0, 1), (0, 0)])
    row_points = (above - below) * 72 / ax.figure.dpi
    thick = [p.get_linewidth() for p in ax.patches if p.get_edgecolor() == to_rgba(plots.FORWARD)]
    assert thick == [pytest.approx(plots_pipeline.BAR * row_points)]


def test_panels_share_one_time_axis_and_say_their_makespan():
    panels = {"GPipe": timeline("gpipe", 4, 8), "ZB-H1": timeline("zb-h1", 4, 8)}
    ax = timelines(panels, unit="steps")
    assert {text.get_text() for text in ax.texts} == {"GPipe", "33", "ZB-H1", "27"}
    assert ax.get_xlim() == (0, 33)
    assert ax.get_xlabel() == "time (steps)"
    assert timelines(panels, unit="steps", limit=60).get_xlim() == (0, 60)


def test_numbers_name_the_micro_batch_in_the_middle_of_its_bar():
    shown = timeline("1f1b", 2, 3)
    ax = timelines({"it": shown}, unit="steps", numbered=True)
    numbers = sorted((t.get_text(), t.xy[0]) for t in ax.texts if t.get_color() == "white")
    expected = sorted(
        (str(span.op.microbatch), (span.start + span.end) / 2)
        for rank in shown.spans
        for span in rank
    )
    assert numbers == expected


def test_the_marked_micro_batch_is_outlined_and_no_other():
    shown = timeline("gpipe", 2, 3)
    ax = timelines({"it": shown}, unit="steps", marked=1)
    outlines = [p for p in ax.patches if p.get_edgecolor() == to_rgba(plots.INK)]
    (outline,) = [p for p in outlines if p.get_path().codes is not None and p.get_linewidth() < 2]
    lefts = sorted(outline.get_path().vertices[::5, 0])
    assert lefts == sorted(
        span.start for rank in shown.spans for span in rank if span.op.microbatch == 1
    )


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("1f1b", ["forward", "backward", "idle"]),
        ("zb-h1", ["forward", "input gradient", "weight gradient", "idle"]),
    ],
)
def test_the_legend_names_what_is_drawn_and_nothing_else(name, labels):
    ax = timelines({"it": timeline(name)}, unit="steps")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == labels


def test_decoding_shows_forwards_only():
    shown = simulate(round_robin(2, 2, 3), Cost.of(round_robin(2, 2, 3)))
    ax = timelines({"it": shown}, unit="ms")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["forward", "idle"]


def test_a_picture_is_light_and_the_same_on_every_run():
    shown = timeline("interleaved-1f1b", 4, 8, chunks_per_rank=4)  # 256 operations
    pictures = [
        plots.figure(timelines({"it": shown}, unit="steps"), alt="Bars.", caption="Bars.").svg
        for _ in range(2)
    ]
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) < 20_000
    assert not re.search(r"nan|inf", pictures[0])
