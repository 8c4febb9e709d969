"""Budgets per layer: closed forms, exact totals, the authors' and kvpress's variants."""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest

from kvpipe.pyramid.budgets import (
    authors,
    exponential,
    kvpress,
    proportional,
    pyramid,
    uniform,
)

GOLDEN = json.loads((Path(__file__).parent / "golden/kvpress_budgets.json").read_text())
SIZES = list(itertools.product((1, 2, 3, 16, 22, 80), (1, 2, 3, 9, 40, 300, 7500), (1, 4, 8)))


def entropy(n_layers, n_tokens, budget, window):
    """A third general shape: weights that neither fall nor rise."""
    return proportional(
        n_layers, n_tokens, budget, window, [1 + (3 * i) % 7 for i in range(n_layers)]
    )


SCHEDULES = [uniform, pyramid, exponential, entropy]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda f: f.__name__)
def test_totals_are_exact_and_every_layer_keeps_its_window(schedule):
    for n_layers, n_tokens, window in SIZES:
        for budget in {window, window + 1, window + 5, 64, 128, 2048, 10**6}:
            if budget < window:
                continue
            kept = schedule(n_layers, n_tokens, budget, window)
            assert len(kept) == n_layers and all(isinstance(n, int) for n in kept)
            assert sum(kept) == n_layers * min(budget, n_tokens)
            assert all(min(window, n_tokens) <= n <= n_tokens for n in kept)


@pytest.mark.parametrize("schedule", [uniform, pyramid, exponential], ids=lambda f: f.__name__)
def test_lower_layers_never_get_less(schedule):
    for n_layers, n_tokens, window in SIZES:
        kept = schedule(n_layers, n_tokens, window + 37, window)
        assert list(kept) == sorted(kept, reverse=True)


@pytest.mark.parametrize("beta", [1, 1.5, 3, 20, 1000])
@pytest.mark.parametrize("n_layers", [2, 5, 32])
def test_the_pyramid_is_equation_1_to_within_rounding(n_layers, beta):
    budget, window, total = 128, 8, n_layers * 120
    top = total / (beta * n_layers)
    bottom = 2 * total / n_layers - top
    step = (bottom - top) / (n_layers - 1)
    kept = pyramid(n_layers, 7500, budget, window, beta)
    for layer, n in enumerate(kept):
        assert abs(n - window - (bottom - layer * step)) < 1


def test_the_pyramid_by_hand():
    # History 20 per layer: top 20/20 = 1, bottom 39, step 38/3: 39, 26 1/3, 13 2/3, 1.
    assert pyramid(4, 1000, 24, 4) == (4 + 39, 4 + 26, 4 + 14, 4 + 1)
    # Bottom to top is 2 * beta - 1.
    kept = pyramid(5, 10**6, 2008, 8)
    assert Fraction(kept[0] - 8, kept[-1] - 8) == 39
    # One layer is its own average.
    assert pyramid(1, 100, 24, 4) == (24,)


def test_a_bottom_larger_than_the_prompt_is_clamped_and_the_top_takes_the_rest():
    # History 52 of 92: the unclamped bottom would be 101.4; 92, 72, 52, 32, 12 keeps the average.
    assert pyramid(5, 100, 60, 8) == (100, 80, 60, 40, 20)


@pytest.mark.parametrize(
    "budget, history",
    [(64, 2.8), (96, 4.4), (128, 6.0), (256, 12.4), (512, 25.2), (1024, 50.8), (2048, 102)],
)
def test_the_top_layer_of_the_paper_keeps_this_many_beside_its_window(budget, history):
    assert abs(pyramid(32, 7500, budget, 8)[-1] - 8 - history) < 1


def test_shares_that_exceed_the_prompt_go_to_the_other_layers():
    # 4 layers of history 10 in all 40; weights 97:1:1:1 would give 38.8 to the first, which has 15.
    assert proportional(4, 19, 14, 4, [97, 1, 1, 1]) == (19, 13, 12, 12)
    # Two full layers, one after the other: 6 + 6 + 3.
    assert proportional(3, 7, 6, 1, [100, 50, 1]) == (7, 7, 4)


def test_exponential_layers_have_a_constant_ratio():
    kept = exponential(6, 10**6, 50_008, 8, decay=0.5)
    for lower, upper in itertools.pairwise(kept):
        assert abs((lower - 8) / (upper - 8) - 2) < 0.01
    assert exponential(6, 1000, 40, 8, decay=1) == (40,) * 6


@pytest.mark.parametrize(
    "n_tokens, expected",
    [
        (127, (127,) * 3),
        (128, (128,) * 3),
        (239, (128,) * 3),
        (240, (240, 128, 16)),
        (7500, (242, 128, 14)),
    ],
)
def test_the_authors_branches(n_tokens, expected):
    """Shorter than the budget; shorter than twice the history; clamped; free."""
    assert authors(3, n_tokens, 128, 8) == expected


@pytest.mark.parametrize(
    "n_layers, budget, excess",
    [
        (16, 64, 2.3),
        (32, 64, 11.7),
        (32, 96, 6.8),
        (32, 128, 4.3),
        (32, 256, 1.4),
        (32, 2048, 0.0),
        (80, 64, 22.7),
        (80, 128, 27.3),
    ],
)
def test_the_authors_floored_step_spends_more_than_the_budget(n_layers, budget, excess):
    kept = authors(n_layers, 7500, budget, 8)
    assert round(100 * (sum(kept) / (n_layers * budget) - 1), 1) == excess


def test_the_authors_schedule_survives_one_layer():
    assert authors(1, 7500, 128, 8) == (242,)


def test_kvpress_golden_numbers():
    assert len(GOLDEN["cases"]) == 120
    for case in GOLDEN["cases"]:
        kept = tuple(case["kept"])
        options = {name: value for name, value in case.items() if name != "kept"}
        assert kvpress(**options) == kept, options


def test_kvpress_falls_back_to_equal_layers_below_1280_tokens():
    n_tokens = 8192
    free = kvpress(32, n_tokens, 1 - 1281 / n_tokens)
    fallen = kvpress(32, n_tokens, 1 - 1279 / n_tokens)
    assert free[0] > free[-1] and len(set(fallen)) == 1


@pytest.mark.parametrize("n_tokens, removed, window, beta", [(4096, 0.5, 64, 20), (900, 0.6, 8, 5)])
def test_kvpress_and_the_paper_agree_where_neither_falls_back(n_tokens, removed, window, beta):
    """kvpress's count is the paper's history: its average is n (1 - removed) without a window."""
    average = round(n_tokens * (1 - removed))
    theirs = kvpress(9, n_tokens, removed, window, beta)
    ours = pyramid(9, n_tokens, average + window, window, beta)
    assert all(abs(n - window - m) <= 1 for n, m in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("schedule", [*SCHEDULES, authors], ids=lambda f: f.__name__)
def test_bad_counts_are_named(schedule):
    with pytest.raises(ValueError, match=r"budget of 7 tokens per layer is less than the window"):
        schedule(3, 100, 7, 8)
    with pytest.raises(ValueError, match=r"0 layers"):
        schedule(0, 100, 20, 8)
    with pytest.raises(ValueError, match=r"0 prompt tokens"):
        schedule(3, 0, 20, 8)
    with pytest.raises(ValueError, match=r"0 window tokens"):
        schedule(3, 100, 20, 0)


@pytest.mark.parametrize("beta", [0, 0.99, -3, float("nan"), float("inf")])
def test_a_beta_that_is_no_pyramid_is_refused(beta):
    with pytest.raises(ValueError, match=r"beta is .* must be 1"):
        pyramid(3, 100, 20, 8, beta)


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match=r"decay is 1.1"):
        exponential(3, 100, 20, 8, 1.1)
    with pytest.raises(ValueError, match=r"2 weights for 3 layers"):
        proportional(3, 100, 20, 8, [1, 2])
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"above 0"):
            proportional(3, 100, 20, 8, [1, bad, 2])
    with pytest.raises(ValueError, match=r"removed share is 1"):
        kvpress(3, 100, 1)
