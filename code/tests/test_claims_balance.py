"""Claims about KV-Pipe and pipeline balance, computed from FLOPs and the schedule simulator.

`book/ledger.yml` points here. Layers count from 0: the source's 29 to 32 are 28 to 31. Times are of
1F1B with free transfers and a backward of two forwards.
"""

import itertools
import math
import random
from dataclasses import replace
from functools import cache

import pytest

from kvpipe.balance import (
    Conventions,
    Request,
    StageCosts,
    algorithm_1,
    alternatives,
    bipolar,
    borders,
    change,
    corrected,
    exact,
    fir,
    head_budget,
    kv_source,
    listed_costs,
    model_costs,
    predict,
    read_architecture,
    schedule_for,
    stage_costs,
    uniform,
)
from kvpipe.balance.costs import layer_cost

COSTS = model_costs("llama2-7b", 8192)
EIGHT = stage_costs(COSTS, 8)
ROWS = {2: 4096, 4: 8192, 8: 8192}  # stages -> tokens of the published rows


@cache
def gain(n_stages: int, shared: tuple, n_tokens: int = 8192, M: int = 32, name: str = "llama2-7b"):
    """What a conversion changes, against the same model without one."""
    costs = model_costs(name, n_tokens)
    stages, schedule = schedule_for(costs, n_stages, n_microbatches=M)
    return change(predict(stages, schedule), predict(stages, schedule, shared))


def last(n: int, n_layers: int = 32) -> tuple[int, ...]:
    return tuple(range(n_layers - n, n_layers))


def row(n_stages: int) -> StageCosts:
    return stage_costs(model_costs("llama2-7b", ROWS[n_stages]), n_stages)


def random_profile(seed: int) -> StageCosts:
    """16 layers on 4 stages, each within 20 % of the others, with a head."""
    chance = random.Random(seed)
    layers = [{"cost": chance.uniform(8, 12), "saving": 1.4} for _ in range(16)]
    listed = {"layers": layers, "extras": [{"name": "head", "cost": 5.6}]}
    return stage_costs(listed_costs(listed, 1), 4)


# The definition.


def test_fir_is_1_for_equal_loads_and_above_1_otherwise():
    assert fir([7.0] * 5) == pytest.approx(1)
    for seed in range(50):
        loads = [random.Random(seed + i).uniform(0, 9) for i in range(6)]
        assert fir(loads) > 1


def test_at_fir_1_12_an_average_stage_idles_10_7_percent_of_the_time():
    loads = [1.0] * 7 + [1.137]
    assert fir(loads) == pytest.approx(1.118, abs=1e-3)
    assert pytest.approx(0.107, abs=5e-4) == 1 - 1 / 1.12  # of the step
    assert pytest.approx(0.12) == 1.12 - 1  # of the mean's own time


def test_fir_can_rise_while_the_time_falls():
    firs = [EIGHT.fir(last(n)) for n in (4, 8, 16)]
    times = [gain(8, last(n)).time for n in (4, 8, 16)]
    assert firs == pytest.approx([1.0004, 1.0185, 1.0568], abs=5e-5)
    assert times == pytest.approx([-0.1025, -0.1080, -0.1146], abs=5e-5)


# LLaMA2-7B on eight stages.


def test_a_stage_of_four_layers_is_1_546e13_flops_and_the_last_1_761e13():
    loads = EIGHT.loads()
    assert loads[0] == pytest.approx(1.54619e13, rel=1e-5)
    assert COSTS.layers[0].total == pytest.approx(3.86547e12, rel=1e-5)
    assert loads[-1] == pytest.approx(1.76094e13, rel=1e-5)
    assert loads[-1] / loads[0] - 1 == pytest.approx(0.1389, abs=5e-5)
    assert fir([1.55] * 7 + [1.763]) == pytest.approx(1.1182, abs=5e-5)  # the printed pair


def test_the_baseline_is_1_1195_with_half_of_the_pairs_and_1_1048_with_all():
    assert EIGHT.fir() == pytest.approx(1.119454, abs=5e-7)
    full = model_costs("llama2-7b", 8192, Conventions(causal="full"))
    assert stage_costs(full, 8).fir() == pytest.approx(1.104803, abs=5e-7)


def test_without_its_head_the_model_is_balanced():
    bare = model_costs("llama2-7b", 8192, Conventions(head="none"))
    assert stage_costs(bare, 8).fir() == pytest.approx(1)
    assert head_budget(EIGHT).conversions == pytest.approx(3.90625)


def test_four_placements_of_four_layers():
    assert EIGHT.fir(uniform(32, 4)) == pytest.approx(1.103793, abs=5e-7)
    assert EIGHT.fir(bipolar(32, 4)) == pytest.approx(1.068223, abs=5e-7)
    assert EIGHT.fir(last(4)) == pytest.approx(1.000417, abs=5e-7)


def test_the_excess_of_uniform_is_249_times_that_of_balanced():
    ratio = (EIGHT.fir(uniform(32, 4)) - 1) / (EIGHT.fir(last(4)) - 1)
    assert ratio == pytest.approx(249.0, abs=0.05)


def test_uniform_and_bipolar_use_the_second_half_only():
    assert uniform(32, 4) == (16, 21, 26, 31) and bipolar(32, 4) == (16, 17, 30, 31)
    assert [EIGHT.stage_of[layer] for layer in bipolar(32, 4)] == [4, 4, 7, 7]


def test_placements_do_not_differ_where_the_second_half_is_one_stage():
    two, four = stage_costs(COSTS, 2), stage_costs(COSTS, 4)
    placements = uniform(32, 4), bipolar(32, 4), last(4)
    assert [two.fir(p) for p in placements] == pytest.approx([1.0004] * 3, abs=5e-5)
    assert [four.fir(p) for p in placements] == pytest.approx([1.0343, 1.0343, 1.0004], abs=5e-5)


def test_the_first_four_conversions_lower_fir_in_equal_steps():
    firs = [EIGHT.fir(last(n)) for n in range(5)]
    assert firs == pytest.approx([1.1195, 1.0893, 1.0588, 1.0281, 1.0004], abs=5e-5)


# Algorithm 1.


def test_algorithm_1_converts_1_3_and_4_layers_for_the_printed_tolerances():
    found = [algorithm_1(EIGHT, 8, epsilon).shared for epsilon in (0.10, 0.05, 0.02)]
    assert found == [last(1), last(3), last(4)]
    full = stage_costs(model_costs("llama2-7b", 8192, Conventions(causal="full")), 8)
    assert [len(algorithm_1(full, 8, e).shared) for e in (0.10, 0.05, 0.02)] == [1, 3, 4]


def test_layers_27_to_30_are_out_of_its_reach_and_worse_than_29_to_31():
    reached = {
        algorithm_1(EIGHT, m, e).shared for m in range(1, 9) for e in (0.0, 0.001, 0.02, 0.1)
    }
    assert all(31 in shared for shared in reached)
    assert EIGHT.fir(range(27, 31)) == pytest.approx(1.0327, abs=5e-5)


def test_the_default_tolerance_converts_nothing_on_two_stages_and_one_layer_on_four():
    two, four = algorithm_1(row(2), 8), algorithm_1(row(4), 8)
    assert two.shared == () and row(2).fir() == pytest.approx(1.0183, abs=5e-5)
    assert four.shared == last(1) and row(4).fir(last(1)) == pytest.approx(1.0383, abs=5e-5)


def test_on_random_profiles_fir_often_rises_and_the_last_state_is_not_the_best():
    rises = worse = 0
    for seed in range(300):
        profile = random_profile(seed)
        firs = [profile.fir(), *(step.fir for step in algorithm_1(profile, 6, 0.02).steps)]
        rises += any(b > a + 1e-12 for a, b in itertools.pairwise(firs))
        worse += firs[-1] > min(firs) + 1e-12
    assert rises > 60 and worse > 15


def test_it_ends_on_a_stage_without_layers_although_others_could_be_relieved():
    found = algorithm_1(EIGHT, 8, 0.0001)
    assert found.shared == (3, *last(4)) and "no layer left" in found.stopped
    assert found.steps[-1].fir > found.steps[-2].fir


def test_no_search_takes_more_steps_than_its_budget():
    for seed in range(100):
        assert len(algorithm_1(random_profile(seed), 6, 0.0).steps) <= 6


def test_greedy_is_best_for_equal_layers_and_not_for_unequal_ones():
    for n_stages in (2, 4, 8):
        stages = stage_costs(COSTS, n_stages)
        best = stages.fir(exact(stages, 8, "fir").shared)
        assert stages.fir(corrected(stages, 8, "fir").shared) == pytest.approx(best)
    gaps = []
    for seed in range(60):
        profile = random_profile(seed)
        best = profile.fir(exact(profile, 6, "fir").shared)
        gaps.append(profile.fir(algorithm_1(profile, 6, 0.02).shared) - best)
    assert min(gaps) > -1e-12 and max(gaps) > 0.01


def test_15_million_subsets_need_no_search_through_them():
    assert sum(math.comb(32, k) for k in range(9)) == 15_033_173
    assert exact(EIGHT, 8, "fir").shared == last(4)


def test_spread_imbalance_bipolar_may_win_and_fixed_rules_may_lose_to_nothing():
    wide = read_architecture("llama2-7b")
    layers = tuple(
        layer if i in {2, 12, 13, 14, 21, 30} else replace(layer, window=4096)
        for i, layer in enumerate(wide.layers)
    )
    mixed = stage_costs(model_costs(replace(wide, layers=layers), 32_768), 8)
    assert mixed.fir() > 1.2 and mixed.stage_of[12] == 3
    for fixed in (uniform(32, 4), bipolar(32, 4), last(4)):
        assert mixed.fir(fixed) > mixed.fir()
    wins = 0
    for seed in range(100):
        profile = random_profile(seed)
        wins += profile.fir(bipolar(16, 4)) < profile.fir(range(12, 16)) - 1e-9
    assert wins > 5


# The budget.


def test_a_head_takes_3_9_conversions_whatever_the_stages_and_tokens():
    for n_stages in (2, 4, 8):
        for n_tokens in (2048, 8192, 65_536):
            stages = stage_costs(model_costs("llama2-7b", n_tokens), n_stages)
            assert head_budget(stages).conversions == pytest.approx(3.90625)
            firs = {n: stages.fir(last(n)) for n in range(9)}
            assert min(firs, key=firs.get) == 4


def test_the_budgets_of_two_and_four_stages_look_swapped():
    assert row(2).fir(last(8)) == pytest.approx(1.0200, abs=5e-5)
    assert row(2).fir(last(8)) > row(2).fir()
    assert row(2).fir(last(6)) == pytest.approx(1.0101, abs=5e-5)
    assert row(4).fir(last(6)) == pytest.approx(1.0094, abs=5e-5)
    assert row(4).fir(last(8)) == pytest.approx(1.0185, abs=5e-5)


def test_recomputed_mfu_peaks_at_four_layers_for_any_depth_and_time_never_rises():
    for n_stages in (2, 4, 8):
        found = {n: gain(n_stages, last(n)) for n in range(1, 13)}
        assert max(found, key=lambda n: found[n].mfu_recomputed) == 4
        times = [found[n].time for n in sorted(found)]
        assert all(b <= a + 1e-12 for a, b in itertools.pairwise(times))
        fixed = [found[n].mfu_fixed for n in sorted(found)]
        assert fixed == sorted(fixed)


def test_planning_on_fir_leaves_time_unused():
    for n_stages, largest, greedy in ((2, 0.9493, 0.9742), (4, 0.9184, 0.9351)):
        stages = stage_costs(COSTS, n_stages)
        base = max(stages.loads())
        assert max(stages.loads(exact(stages, 8).shared)) / base == pytest.approx(largest, abs=5e-5)
        found = algorithm_1(stages, 8, 0.005).shared
        assert max(stages.loads(found)) / base == pytest.approx(greedy, abs=5e-5)


def test_deeper_pipelines_are_less_balanced():
    firs = [stage_costs(COSTS, n_stages).fir() for n_stages in (2, 4, 8, 16, 32)]
    assert firs == pytest.approx([1.0171, 1.0512, 1.1195, 1.2560, 1.5290], abs=5e-5)


# Times and MFU.


def test_printed_gains_of_two_and_four_stages_exceed_their_bound():
    assert gain(2, last(8), 4096).limit == pytest.approx(-0.0360, abs=5e-5)
    assert gain(4, last(6)).limit == pytest.approx(-0.0649, abs=5e-5)
    assert 0.0490 > 0.0360 and 0.0756 > 0.0649
    assert gain(4, last(6)).time > gain(4, last(8)).time  # more layers are never slower


def test_the_gain_of_eight_stages_fits_25_micro_batches():
    assert gain(8, last(4), M=25).time == pytest.approx(-0.0980, abs=5e-4)
    assert gain(8, last(4)).limit == pytest.approx(-0.1220, abs=5e-5)
    assert gain(8, last(4)).mfu_recomputed == pytest.approx(0.0947, abs=5e-5)


def test_mfu_and_time_of_a_row_fit_together_only_with_recomputed_full_squares():
    kept = EIGHT.loads(last(4))
    half = math.fsum(kept) / math.fsum(EIGHT.loads())
    full = stage_costs(model_costs("llama2-7b", 8192, Conventions(causal="full")), 8)
    whole = math.fsum(full.loads(last(4))) / math.fsum(full.loads())
    faster = 1 / (1 - 0.0980)
    assert faster - 1 == pytest.approx(0.1086, abs=5e-5)
    assert faster * half - 1 == pytest.approx(0.0893, abs=5e-5)
    assert faster * whole - 1 == pytest.approx(0.0917, abs=5e-5)


def test_eight_shared_layers_are_faster_than_four():
    four, eight = gain(8, last(4)).time, gain(8, last(8)).time
    assert eight < four and four - eight == pytest.approx(0.0055, abs=1e-4)


def test_uniform_and_bipolar_cannot_gain_what_is_printed():
    assert gain(8, uniform(32, 4)).limit == pytest.approx(-0.0312, abs=5e-5)
    assert gain(8, bipolar(32, 4)).limit == pytest.approx(-0.0624, abs=5e-5)
    assert gain(8, uniform(32, 4)).limit > -0.0700 and gain(8, bipolar(32, 4)).limit > -0.0760


def test_conversions_off_the_largest_stage_gain_a_little_with_few_micro_batches():
    off = tuple(range(4, 8))  # stage 1
    assert gain(8, off, M=8).time < -0.003
    assert gain(8, off, M=2000).time == pytest.approx(0, abs=2e-4)


def test_of_one_model_mfu_is_inverse_to_time():
    assert pytest.approx(44.9, abs=0.05) == 39.0 * 305 / 265  # printed 47.0
    assert pytest.approx(46.2, abs=0.05) == 39.5 * 960 / 820  # printed 48.5
    assert pytest.approx(0.064, abs=5e-4) == 50.0 / 47.0 - 1
    assert pytest.approx(0.072, abs=5e-4) == 52.0 / 48.5 - 1


def test_13b_at_16k_can_gain_7_55_percent_at_most():
    stages = stage_costs(model_costs("llama2-13b", 16_384), 8)
    best = max(stages.loads(exact(stages, 8).shared)) / max(stages.loads())
    assert best - 1 == pytest.approx(-0.0755, abs=5e-5)
    assert pytest.approx(-0.0854, abs=5e-5) == 750 / 820 - 1


def test_one_configuration_has_two_printed_results():
    assert last(8) == tuple(range(24, 32))  # both rows: layers 25 to 32, counted from 1
    assert pytest.approx(0.25) == 3.10 - 2.85 and pytest.approx(0.55) == 4.90 - 4.35


def test_segments_shorten_filling_and_leave_the_largest_stage():
    stages, plain = schedule_for(COSTS, 8, "1f1b", 8)
    cut, seq = schedule_for(COSTS, 8, "seq1f1b", 8, segments=4)
    assert predict(cut, seq).time < predict(stages, plain).time
    floor = 8 * 3 * max(stages.loads())
    assert predict(cut, seq).time > floor
    relieved = predict(cut, seq, last(4)).time / predict(cut, seq).time - 1
    assert relieved < predict(stages, plain, last(4)).time / predict(stages, plain).time - 1


# What a conversion removes.


def test_longer_sequences_leave_less_to_gain():
    shares, firs = [], []
    for n_tokens in (8192, 16_384, 32_768, 131_072):
        layer = model_costs("llama2-7b", n_tokens).layers[0]
        shares.append(layer.saving / layer.total)
        firs.append(stage_costs(model_costs("llama2-7b", n_tokens), 8).fir())
    assert shares == pytest.approx([0.142, 0.125, 0.100, 0.045], abs=5e-4)
    assert firs == sorted(firs, reverse=True)


@pytest.mark.parametrize(
    ("name", "needed", "cancelled", "after"),
    [("llama3-8b", 62.625, 0.0639, 1.4029), ("qwen2.5-14b", 74.25, 0.0808, 1.3143)],
)
def test_grouped_queries_leave_too_little_to_remove(name, needed, cancelled, after):
    stages = stage_costs(model_costs(name, 8192), 8)
    budget = head_budget(stages)
    assert budget.conversions == pytest.approx(needed) and not budget.is_feasible
    assert budget.cancelled == pytest.approx(cancelled, abs=5e-5)
    assert stages.fir(stages.chunks[-1]) == pytest.approx(after, abs=5e-5)


def test_formulas_for_projections_scores_and_savings():
    for name in ("llama2-7b", "llama3-8b"):
        layer = read_architecture(name).layers[0]
        h, r, s = layer.width, layer.n_heads / layer.n_kv_heads, 8192
        full = layer_cost(layer, s, Conventions(causal="full")).modules
        assert full["query"] + full["key and value"] == 2 * s * h * h * (1 + 2 / r)
        assert full["scores"] == 4 * s * s * h
        attention = full["scores"] + full["output"] + full["query"] + full["key and value"]
        assert attention == s * (4 * h * h + 4 * h * h / r + 4 * s * h)
        assert layer_cost(layer, s).saving == s * 4 * h * h / r
        assert layer_cost(layer, s).kv_elements == 2 * h / r


def test_kv_bytes_per_token_and_layer():
    expected = {"llama2-7b": 16_384, "llama2-13b": 20_480, "llama3-8b": 4096, "qwen2.5-14b": 4096}
    for name, n_bytes in expected.items():
        assert 2 * model_costs(name, 8).layers[0].kv_elements == n_bytes


def test_a_plan_on_a_whole_stage_sends_three_times_the_bytes():
    border = borders(COSTS, EIGHT, kv_source(EIGHT, last(4)))[-1]
    assert (border.hidden_bytes, border.kv_bytes) == (64 * 2**20, 128 * 2**20)
    local = [layer for layer in last(4) if layer != 28]
    assert not any(b.kv_bytes for b in borders(COSTS, EIGHT, kv_source(EIGHT, local)))
    assert EIGHT.fir(local) == pytest.approx(1.0281, abs=5e-5)


def test_other_methods_gain_more_where_queries_are_grouped():
    found = {row.name: row for row in alternatives(model_costs("llama3-8b", 8192), Request(8))}
    times = {name: round(100 * row.change.time, 1) for name, row in found.items()}
    assert times["share KV"] == -1.9 and times["uneven split"] == -17.8
    assert times["uneven split + share KV"] == -19.4
    assert times["vocabulary-parallel head"] == -25.4


def test_13b_needs_104_gb_per_device_on_two_stages():
    assert 16 * 13e9 / 2 / 1e9 == 104 and 16 * 13e9 / 4 / 1e9 == 52  # a V100 has 16 or 32 GB


def test_a_smaller_imbalance_explains_part_of_a_published_gain():
    assert pytest.approx(0.0098, abs=5e-5) == 1.03 / 1.02 - 1 and 34.5 / 33.0 - 1 > 0.045
    assert pytest.approx(0.0467, abs=5e-5) == 1.12 / 1.07 - 1 and 163 / 155 - 1 > 0.0515


def test_a_head_measured_at_1_35_to_1_6_of_its_flops_changes_the_plan():
    def scaled(factor: float) -> StageCosts:
        extras = tuple(replace(extra, cost=extra.cost * factor) for extra in COSTS.extras)
        return stage_costs(replace(COSTS, extras=extras), 8)

    for factor in (1.4, 1.55):
        found = [len(algorithm_1(scaled(factor), 8, e).shared) for e in (0.02, 0.05, 0.10)]
        assert found == [4, 4, 3]
