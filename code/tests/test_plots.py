"""Figures say what the data says, look the same on every run, and are readable by everybody."""

import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from kvpipe import plots, svg

WHITE, DARK = "#ffffff", "#121212"  # backgrounds of the book's two themes
# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "all colours": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}


def linear_rgb(color: str) -> np.ndarray:
    c = np.array(to_rgb(color))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(color: str, background: str) -> float:
    dark, light = sorted(linear_rgb(c) @ [0.2126, 0.7152, 0.0722] for c in (color, background))
    return (light + 0.05) / (dark + 0.05)


def cielab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def sample_axes() -> Axes:
    return plots.cache_growth([1024, 4096], {"a <model>": [2.0**20, 2.0**22]}, {"a <model>": 2e6})


@pytest.mark.parametrize("background", [WHITE, DARK])
def test_every_colour_stands_out_from_both_backgrounds(background):
    assert {c: contrast(c, background) for c in plots.SERIES if contrast(c, background) < 3} == {}


@pytest.mark.parametrize("vision", VISION)
def test_any_two_colours_differ_for_every_kind_of_sight(vision):
    seen = {color: cielab(VISION[vision] @ linear_rgb(color)) for color in plots.SERIES}
    distances = {
        pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]])
        for pair in itertools.combinations(plots.SERIES, 2)
    }
    assert min(distances.values()) > 15, min(distances, key=distances.get)


def test_a_figure_needs_alt_text_and_a_caption():
    with pytest.raises(ValueError, match="alt text is empty"):
        plots.figure(sample_axes(), alt=" ", caption="It grows.")
    with pytest.raises(ValueError, match="caption is empty"):
        plots.figure(sample_axes(), alt="A line.", caption="")


def test_alt_and_caption_reach_the_page_escaped():
    shown = plots.figure(sample_axes(), alt='"a" < b', caption="`K < H` & so on")
    page = shown.to_html()
    assert 'aria-label="&quot;a&quot; &lt; b"' in page
    assert "<figcaption><code>K &lt; H</code> &amp; so on</figcaption>" in page
    assert shown._repr_mimebundle_()["text/plain"] == '[figure] "a" < b'


def test_svg_is_well_formed_and_keeps_text_as_text():
    tree = ET.fromstring(svg.render(sample_axes(), alt="A line."))
    texts = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "context (tokens)" in texts and "a <model>" in texts


def test_svg_takes_ink_from_the_page_and_brings_no_background_style_or_font():
    text = svg.render(sample_axes(), alt="A line.")
    assert "currentColor" in text
    for unwanted in (svg.INK, "<style", "font-family", "<metadata", "#ffffff", "<image"):
        assert unwanted not in text
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}


def test_every_id_is_referred_to_and_differs_between_figures():
    def ids(text: str) -> set[str]:
        return set(re.findall(r' id="([^"]*)"', text))

    one = svg.render(sample_axes(), alt="A line.")
    other = svg.render(plots.rotated_pair({"q": (1, 0)}), alt="An arrow.")
    assert ids(one) == set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", one)) != set()
    assert not ids(one) & ids(other)


def test_rounding_moves_nothing_by_more_than_a_hundredth_of_a_point():
    ax = sample_axes()
    numbers = [
        [float(n) for n in re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", text) for n in n]
        for text in (svg._matplotlib_svg(ax), svg.render(ax, alt="A line."))
    ]
    assert len(numbers[0]) == len(numbers[1]) > 50
    assert np.abs(np.subtract(*numbers)).max() <= 0.0051


def test_the_same_figure_is_the_same_bytes_in_every_process_and_needs_no_pyplot():
    script = (
        "import sys; from kvpipe import plots;"
        "ax = plots.layer_head_map([[1, 2, 3], [4, 5, 7]], bar_label='nats');"
        "print(plots.figure(ax, alt='a', caption='c').to_html());"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1 and len(runs.pop()) > 2000


def test_rotated_pair_draws_each_vector_from_the_origin():
    ax = plots.rotated_pair({"q at 0": (3.0, 0.0), "q at 7": (0.0, -3.0)})
    lines = {line.get_label(): line.get_xydata() for line in ax.get_lines()}
    np.testing.assert_array_equal(lines["q at 0"], [[0, 0], [3, 0]])
    np.testing.assert_array_equal(lines["q at 7"], [[0, 0], [0, -3]])
    assert ax.get_aspect() == 1


def test_heat_map_shows_row_0_on_top_and_leaves_nan_empty():
    values = [[0.0, 1.0, 2.0], [3.0, math.nan, 5.0]]
    ax = plots.heat_map(values, xlabel="head", ylabel="layer", bar_label="nats")
    drawn = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(drawn, -1), [[0, 1, 2], [3, -1, 5]])
    bottom, top = ax.get_ylim()
    assert bottom > top
    assert (ax.collections[0].norm.vmin, ax.collections[0].norm.vmax) == (0, 5)


def test_only_cells_without_a_value_are_hatched_in_the_ink_of_the_page():
    values = np.array([[math.nan, 1.0, math.nan, math.nan], [1.0, 2.0, 3.0, 4.0]])
    ax = plots.heat_map(values, xlabel="x", ylabel="y", bar_label="b")
    places = [(patch.get_xy(), patch.get_width(), patch.get_height()) for patch in ax.patches]
    assert places == [((0, 0), 1, 1), ((2, 0), 2, 1)]
    tree = ET.fromstring(svg.render(ax, alt="Two gaps."))
    stripes = [node for node in tree.iter() if node.tag.endswith("pattern")]
    assert stripes and all("currentColor" in ET.tostring(node, "unicode") for node in stripes)


def test_the_cells_of_a_heat_map_touch_without_seams():
    ax = plots.layer_head_map([[1, 2], [3, 4]], bar_label="nats")
    tree = ET.fromstring(svg.render(ax, alt="Four cells."))
    groups = [node for node in tree.iter() if node.get("shape-rendering") == "crispEdges"]
    assert [len(list(group)) for group in groups] == [4]


def test_heat_map_labels_cells_by_their_index():
    ax = plots.layer_head_map(np.ones((30, 9)), bar_label="nats")
    places = ax.yaxis.get_majorticklocs()
    labels = ax.yaxis.get_major_formatter().format_ticks(places)
    np.testing.assert_array_equal(places, [0.5 + int(label) for label in labels])
    assert labels[0] == "0" and len(labels) <= 10


def test_heat_map_refuses_what_is_not_a_matrix():
    with pytest.raises(ValueError, match="got 3 dimension"):
        plots.heat_map(np.ones((2, 3, 4)), xlabel="x", ylabel="y", bar_label="b")


def test_attention_map_hides_keys_after_the_query():
    ax = plots.attention_map(np.full((3, 3), 0.25), ["a", " b", "\n"])
    drawn = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn), ~np.tri(3, dtype=bool))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "·b", "⏎"]
    hatched = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert [(p.get_xy(), p.get_width()) for p in hatched] == [((1, 0), 2), ((2, 1), 1)]
    with pytest.raises(ValueError, match="2 tokens need a 2 × 2 matrix"):
        plots.attention_map(np.full((3, 3), 0.25), ["a", "b"])


def test_cache_growth_marks_the_context_where_the_cache_outweighs_the_weights():
    contexts = [2**power for power in range(10, 21)]
    per_token_bytes, weights_bytes = 131072, 16.06e9
    ax = plots.cache_growth(
        contexts, {"m": [per_token_bytes * c for c in contexts]}, {"m": weights_bytes}
    )
    dot = next(line for line in ax.get_lines() if line.get_marker() == "o")
    assert dot.get_xdata()[0] == pytest.approx(weights_bytes / per_token_bytes, rel=1e-9)
    assert dot.get_ydata()[0] == weights_bytes


def test_cache_growth_marks_nothing_where_the_lines_do_not_cross():
    ax = plots.cache_growth([1024, 2048], {"m": [1e6, 2e6]}, {"m": 1e9})
    assert [line.get_marker() for line in ax.get_lines()] == ["None"]


def test_roofline_bends_where_bandwidth_meets_arithmetic():
    ax = plots.roofline(8e10, 2e10, {"decode": (0.5, 9e9), "prefill": (100, 6e10)})
    x, y = ax.get_lines()[0].get_data()
    np.testing.assert_allclose(y, np.minimum(2e10 * x, 8e10))
    assert ax.get_lines()[1].get_xdata()[0] == 4
    points = {line.get_label(): line.get_xydata()[0].tolist() for line in ax.get_lines()[2:]}
    assert points == {"decode": [0.5, 9e9], "prefill": [100, 6e10]}


def test_predicted_and_measured_draws_both_values_of_each_label():
    ax = plots.predicted_and_measured({"a": 4, "b": 9}, {"b": 8, "a": 5}, unit="tokens/s")
    predicted, measured = ([bar.get_width() for bar in bars] for bars in ax.containers)
    assert predicted == [4, 9]
    assert measured == [5, 8]
    assert ax.get_xlabel() == "tokens/s"


def test_predicted_and_measured_refuses_different_labels():
    with pytest.raises(ValueError, match="differ in their labels: b"):
        plots.predicted_and_measured({"a": 1}, {"a": 1, "b": 2}, unit="ms")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (131072, "128 KiB"), (1.5 * 2**30, "1.5 GiB")],
)
def test_format_bytes(n_bytes, text):
    assert plots.format_bytes(n_bytes) == text


def test_every_plot_draws_into_axes_that_are_given():
    calls = [
        lambda ax: plots.rotated_pair({"q": (1, 0)}, ax=ax),
        lambda ax: plots.layer_head_map([[1, 2]], bar_label="nats", ax=ax),
        lambda ax: plots.attention_map([[1.0]], ["a"], ax=ax),
        lambda ax: plots.cache_growth([1, 2], {"m": [1, 2]}, ax=ax),
        lambda ax: plots.roofline(2, 1, {"a": (1, 1)}, ax=ax),
        lambda ax: plots.predicted_and_measured({"a": 1}, {"a": 1}, unit="s", ax=ax),
    ]
    for call in calls:
        ax = plots.canvas()[1]
        assert call(ax) is ax


def test_no_plot_changes_the_readers_matplotlib_settings():
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.figure(sample_axes(), alt="A line.", caption="It grows.")
    assert dict(matplotlib.rcParams) == before
