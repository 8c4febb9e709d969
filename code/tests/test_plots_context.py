"""Pictures of the ring show every pair once, in the colour of its rank, when it is computed."""

import pytest
from matplotlib.colors import to_rgba

from kvpipe import plots, plots_context
from kvpipe.context import PARTITIONS, pairs_per_step, partition, source, tiles, zigzag
from kvpipe.plots_context import over_ranks, ring_step, turns


def cells(patch):
    """(key, query) of every unit cell that a patch covers."""
    corners = patch.get_path().vertices.reshape(-1, 5, 2)
    return {
        (key, int(top))
        for (left, top), (right, _), *_ in corners
        for key in range(int(left), int(right))
    }


def drawn(ax, when):
    """Rank -> cells, of the patches that say `when`."""
    found = {}
    for patch in ax.patches:
        said, rank = (patch.get_gid() or " ").split(" ")
        if said == when:
            found[int(rank)] = cells(patch)
    return found


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("causal", [True, False])
def test_a_step_shows_the_pairs_that_each_rank_computes_and_no_others(name, step, causal):
    laid = partition(name, 14, 3)
    ax = ring_step(laid, step, causal)
    expected, skipped = {}, {}
    for rank in range(3):
        in_hand = laid.tokens(source(rank, step, 3))
        pairs = {(key, query) for query in laid.tokens(rank) for key in in_hand}
        expected[rank] = {(key, query) for key, query in pairs if not causal or key <= query}
        skipped[rank] = pairs - expected[rank]
        assert len(expected[rank]) == tiles(laid, causal)[step][rank].pairs
    assert drawn(ax, "now") == {rank: found for rank, found in expected.items() if found}
    assert drawn(ax, "skipped") == {rank: found for rank, found in skipped.items() if found}


def test_a_turn_computes_each_visible_pair_once():
    laid, seen = zigzag(13, 3), []
    for step in range(3):
        ax = ring_step(laid, step)
        now, before, later = (
            set().union(*drawn(ax, when).values()) for when in ("now", "before", "later")
        )
        assert not (now & before or now & later or before & later)
        assert len(now | before | later) == 13 * 14 // 2
        assert before == set(seen)
        seen += now
    assert len(seen) == len(set(seen)) == 13 * 14 // 2


def test_a_pair_has_the_colour_of_the_rank_of_its_query():
    laid = zigzag(14, 3)
    ax = ring_step(laid, 1)
    strength = {"now": 1, "before": plots_context.EARLIER}
    for patch in ax.patches:
        when, rank = patch.get_gid().split(" ")
        if when in strength:
            assert patch.get_facecolor() == to_rgba(plots.RANKS[int(rank)], strength[when])
            assert {laid.owner(query) for _, query in cells(patch)} == {int(rank)}


def words(ax):
    """What stands beside the circle of a step, in the order of ranks."""
    circle = ax.figure.axes[0]
    return [text.get_text() for text in circle.texts if "keys of" in text.get_text()]


def test_the_circle_says_whose_keys_are_in_hand_and_who_waits():
    ax = ring_step(partition("contiguous", 15, 3), 1)
    assert words(ax) == ["keys of 2\nwaits", "keys of 0\n25 pairs", "keys of 1\n25 pairs"]
    assert ax.figure.axes[0].get_title() == "step 1"


@pytest.mark.parametrize(("step", "n_arrows"), [(0, 3), (1, 3), (2, 0)])
def test_blocks_move_on_after_every_step_but_the_last(step, n_arrows):
    circle = ring_step(zigzag(14, 3), step).figure.axes[0]
    assert sum(getattr(text, "arrow_patch", None) is not None for text in circle.texts) == n_arrows


@pytest.mark.parametrize("step", [-1, 3])
def test_a_step_that_the_ring_does_not_have_is_refused(step):
    with pytest.raises(ValueError, match=f"step {step} is outside 0..2"):
        ring_step(zigzag(14, 3), step)


def bars(ax, color):
    """(start, width, row) of the bars of a colour."""
    return sorted(
        (bar.get_x(), bar.get_width(), int(bar.get_y()))
        for bar in ax.patches
        if bar.get_facecolor() == to_rgba(color)
    )


def test_every_step_starts_when_the_slowest_rank_has_done_the_last():
    steps = [[5, 2, 4], [0, 7, 3]]
    ax = turns({"it": steps})
    places = [(start, width) for start, width, _ in bars(ax, plots.FORWARD)]
    assert places == [(0, 2), (0, 4), (0, 5), (5, 0), (5, 3), (5, 7)]
    waiting = [(start, width) for start, width, _ in bars(ax, plots.IDLE)]
    assert waiting == [(0, 5)] * 3 + [(5, 7)] * 3
    assert "12" in [text.get_text() for text in ax.texts]


def test_panels_stand_below_each_other_and_say_their_length():
    panels = {name: pairs_per_step(partition(name, 64, 4)) for name in PARTITIONS}
    ax = turns(panels)
    said = [text.get_text() for text in ax.texts]
    assert said == ["contiguous", "904", "zigzag", "520", "striped", "544"]
    assert [label.get_text() for label in ax.get_yticklabels()] == list("0123") * 3
    heights = list(ax.get_yticks())
    assert heights == sorted(set(heights))
    tops = sorted({bar.get_y() for bar in ax.patches})
    assert tops == pytest.approx([height - 0.43 for height in heights])


def test_curves_and_points_stand_where_their_numbers_say():
    ax = over_ranks(
        [1, 2, 8], {"a": [3, 4, 5], "b": [6, 6, 1]}, ylabel="it",
        points={"a, published": (8, 4.5)}, limits=(0, 7),
    )  # fmt: skip
    found = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines
    }
    assert found == {
        "a": ([1, 2, 8], [3, 4, 5]),
        "b": ([1, 2, 8], [6, 6, 1]),
        "a, published": ([8], [4.5]),
    }
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "8"]
    assert ax.get_ylim() == (0, 7)
    colors = {line.get_label(): line.get_color() for line in ax.lines}
    assert colors["a"] == colors["a, published"] != colors["b"]


def test_a_curve_of_another_length_is_refused():
    with pytest.raises(ValueError, match="'b' has 1 values for 2 counts"):
        over_ranks([1, 2], {"a": [1, 2], "b": [1]}, ylabel="it")


def test_cells_join_to_one_rectangle_within_a_row_only():
    corners = plots_context._runs([(0, 0), (1, 0), (2, 1), (4, 1)]).vertices.reshape(-1, 5, 2)
    boxes = [(*box[0], *box[2]) for box in corners.tolist()]
    assert boxes == [(0, 0, 2, 1), (2, 1, 3, 2), (4, 1, 5, 2)]
