"""Predictions, alternatives, plan files, measured signals and the command line of the planner."""

import json
import math
import random
from dataclasses import replace

import pytest

from kvpipe.balance import (
    PRESETS,
    Conventions,
    Request,
    StageCosts,
    borders,
    cache_bytes_saved,
    calibrate,
    change,
    compare,
    exact,
    kv_source,
    listed_costs,
    load,
    make_plan,
    megatron_layout,
    model_costs,
    predict,
    read_times,
    save,
    schedule_for,
    stage_costs,
    study,
    sweep,
    torchtitan_split,
    torchtitan_stages,
    vocabulary_parallel,
)
from kvpipe.balance.__main__ import main
from kvpipe.balance.planfile import from_dict, to_dict, write_atomically
from kvpipe.balance.stages import ranges
from kvpipe.config import Config
from kvpipe.pipeline import Comm, Cost, build, simulate

SEVEN_B = model_costs("llama2-7b", 8192)
STAGES, SCHEDULE = schedule_for(SEVEN_B, 8)


def effect(shared, n_microbatches=32, costs=SEVEN_B, n_stages=8, name="1f1b", **options):
    stages, schedule = schedule_for(costs, n_stages, name, n_microbatches, **options)
    before = predict(stages, schedule, (), costs.conventions)
    return change(before, predict(stages, schedule, shared, costs.conventions))


def percent(value):
    return round(100 * value, 2)


# --- prediction -----------------------------------------------------------------


def test_time_and_both_kinds_of_mfu_of_ever_more_shared_layers():
    found = [effect(range(32 - k, 32)) for k in (4, 8, 16)]
    assert [percent(row.time) for row in found] == [-10.25, -10.80, -11.46]
    assert [percent(row.mfu_recomputed) for row in found] == [9.47, 8.19, 5.05]
    assert [percent(row.mfu_fixed) for row in found] == [11.42, 12.11, 12.94]
    firs = [round(STAGES.fir(range(32 - k, 32)), 4) for k in (4, 8, 16)]
    assert firs == [1.0004, 1.0185, 1.0568]


def test_more_micro_batches_approach_the_change_of_the_largest_stage():
    four = range(28, 32)
    found = [percent(effect(four, M).time) for M in (8, 16, 32, 64)]
    assert found == [-6.94, -8.84, -10.25, -11.13]
    assert percent(effect(four).limit) == -12.20
    assert effect(four, 2000).time == pytest.approx(effect(four).limit, abs=5e-4)


def test_a_conversion_never_slows_a_stage_or_an_iteration():
    for seed in range(12):
        chance = random.Random(seed)
        rows = [{"cost": chance.uniform(5, 9), "saving": chance.uniform(0, 2)} for _ in range(9)]
        costs = listed_costs({"layers": rows, "extras": [{"name": "head", "cost": 6.0}]}, 5)
        for name in ("1f1b", "gpipe", "zb-h1"):
            stages, schedule = schedule_for(costs, 3, name, 7)
            shared, before = [], predict(stages, schedule)
            for layer in chance.sample(range(9), 9):
                shared.append(layer)
                after = predict(stages, schedule, shared)
                assert after.time <= before.time * (1 + 1e-12)
                assert max(stages.loads(shared)) <= max(stages.loads(shared[:-1]))
                before = after


def test_a_prediction_is_the_simulators_and_knows_chunks_recomputation_and_transfers():
    costs = model_costs("llama2-7b", 8192, Conventions(recompute=True))
    # A backward of 3 forwards instead of 2 changes all times alike.
    assert effect(range(28, 32), costs=costs).time == pytest.approx(effect(range(28, 32)).time)
    stages, schedule = schedule_for(costs, 4, "interleaved-1f1b", 8, chunks_per_rank=2)
    assert stages.placement == (0, 1, 2, 3) * 2
    assert stages.loads()[3] == sum(stages.chunk_loads()[chunk] for chunk in (3, 7))
    done = predict(stages, schedule, (), costs.conventions)
    loads = stages.chunk_loads()
    by_hand = Cost(loads, tuple(2 * x for x in loads), loads, (1.0,))
    assert done.time == simulate(schedule, by_hand).makespan
    slow = predict(stages, schedule, (), costs.conventions, Comm(latency=max(loads)))
    assert slow.time > done.time
    # MFU never counts the recomputed forward.
    assert done.work == 8 * 3 * math.fsum(loads)
    assert done.mfu == done.work / (4 * done.time)
    for name in ("zbv", "seq1f1b", "zb-h1", "gpipe"):
        stages, schedule = schedule_for(costs, 4, name, 8)
        assert predict(stages, schedule, range(30, 32)).time < predict(stages, schedule).time
    with pytest.raises(ValueError, match="only decodes"):
        schedule_for(costs, 4, "round-robin", 8)
    with pytest.raises(ValueError, match="the costs on"):
        predict(stages, build("1f1b", 3, 8))
    with pytest.raises(ValueError, match="3 sizes"):
        schedule_for(costs, 4, sizes=(10, 10, 12))


# --- alternatives -----------------------------------------------------------------


def alternatives_of(name, n_stages=8, **options):
    rows = study(model_costs(name, 8192), Request(n_stages, **options)).alternatives
    assert [row.change.time for row in rows] == sorted(row.change.time for row in rows)
    return {row.name: row for row in rows}


def test_llama2_7b_gains_most_by_sharing_and_nothing_by_an_uneven_split():
    rows = alternatives_of("llama2-7b")
    assert percent(rows["share KV"].change.time) == -10.25
    assert percent(rows["vocabulary-parallel head"].change.time) == -8.67
    assert round(rows["vocabulary-parallel head"].fir, 4) == 1.0
    assert rows["uneven split"].sizes == (4,) * 8
    assert rows["uneven split"].change.time == 0 and "none better" in rows["uneven split"].note
    assert rows["share KV"].is_lossless is False and rows["uneven split"].is_lossless is True


@pytest.mark.parametrize(
    ("name", "n_stages", "share", "sizes", "uneven", "both", "parallel"),
    [
        ("llama3-8b", 8, -1.9, (5, 5, 4, 4, 4, 4, 4, 2), -17.8, -19.4, -25.4),
        ("llama3-8b", 4, -2.5, (9, 9, 8, 6), -10.3, -11.5, -14.0),
        ("qwen2.5-14b", 8, -2.0, (7, 7, 6, 6, 6, 6, 6, 4), -16.2, -17.3, -21.3),
    ],
)
def test_models_with_grouped_queries_and_a_large_vocabulary_gain_by_other_means(
    name, n_stages, share, sizes, uneven, both, parallel
):
    rows = alternatives_of(name, n_stages, budget=8)
    assert rows["uneven split"].sizes == sizes
    names = ("share KV", "uneven split", "uneven split + share KV", "vocabulary-parallel head")
    found = [round(100 * rows[name].change.time, 1) for name in names]
    assert found == [share, uneven, both, parallel]


def test_a_plan_that_is_not_worth_it_says_so():
    weak = study(model_costs("llama3-8b", 8192), Request(8))
    text = "\n".join(weak.warnings)
    assert "not worth it: 4 converted layers save 1.9%" in text
    assert "62.6 conversions" in text and "6.4% of it" in text
    assert "vocabulary-parallel head changes no result and saves 25.4%" in text
    strong = study(SEVEN_B, Request(8, same_stage=True))
    assert strong.plan.shared == (29, 30, 31) and percent(strong.change.time) == -7.86
    assert [text.split(" ")[0] for text in strong.warnings] == [
        "vocabulary-parallel",
        "cancelling",
    ]  # worth it, but not alone, and one layer short
    nothing = study(model_costs("llama2-7b", 4096), Request(2, method="algorithm-1"))
    assert nothing.warnings[0].startswith("nothing is converted")
    early = study(SEVEN_B, Request(4))
    assert any("first half" in warning for warning in early.warnings)


def test_compare_ranks_every_method_on_the_same_stages():
    rows = {row.name: row for row in compare(SEVEN_B, Request(8, budget=4))}
    assert rows["uniform"].shared == (16, 21, 26, 31)
    assert rows["Algorithm 1, tolerance 0.1"].shared == (31,)
    assert rows["exact, FIR"].shared == (28, 29, 30, 31)
    assert rows["no sharing"].change.time == 0
    local = {row.name: row for row in compare(SEVEN_B, Request(8, budget=4, same_stage=True))}
    assert local["last layers"].shared == (29, 30, 31)
    assert local["last layers"].note == "without layers [28], which have no legal source"


def test_sweep_converts_what_the_budget_says():
    rows = sweep(SEVEN_B, Request(8, method="last"), (0, 1, 5))
    assert [row.shared for row in rows] == [(), (31,), tuple(range(27, 32))]
    assert [round(row.fir, 4) for row in rows] == [1.1195, 1.0893, 1.0049]


def test_splits_are_told_to_other_programs_in_their_own_words():
    assert torchtitan_split(32, 8) == (4, 5, 4, 4, 4, 4, 4, 3)
    assert torchtitan_split(48, 8) == (6, 7, 6, 6, 6, 6, 6, 5)
    uneven = stage_costs(SEVEN_B, torchtitan_split(32, 8))
    assert round(uneven.fir(), 4) == 1.2287
    assert megatron_layout([3, 1, 2]) == "Et*3|t|t*2,L"
    assert torchtitan_stages([2, 1]) == [
        ["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "output"]
    ]  # fmt: skip
    with pytest.raises(ValueError, match="every stage needs"):
        megatron_layout([3, 0])
    with pytest.raises(ValueError, match="without a layer"):
        torchtitan_split(8, 8)


def test_a_vocabulary_parallel_head_lies_on_every_rank_once():
    stages, _ = schedule_for(SEVEN_B, 4, "interleaved-1f1b", 8, chunks_per_rank=2)
    spread = stage_costs(vocabulary_parallel(SEVEN_B, stages.placement), 8, stages.placement)
    assert math.fsum(spread.loads()) == pytest.approx(math.fsum(stages.loads()))
    assert spread.fir() == 1
    assert [extra > 0 for extra in spread.extras] == [False] * 4 + [True] * 4


# --- what sharing costs elsewhere ---------------------------------------------------


def test_a_source_on_an_earlier_stage_triples_the_traffic_of_a_model_without_groups():
    source = kv_source(STAGES, range(28, 32))
    assert source[28:] == (27,) * 4
    found = borders(SEVEN_B, STAGES, source)
    assert [border.kv_bytes for border in found[:-1]] == [0] * 6
    assert (found[-1].hidden_bytes, found[-1].kv_bytes) == (64 * 2**20, 128 * 2**20)
    assert found[-1].ratio == 3
    for name, ratio in (("llama3-8b", 1.5), ("qwen2.5-14b", 1.4)):
        costs = model_costs(name, 8192)
        stages = stage_costs(costs, 8)
        source = kv_source(stages, stages.chunks[-1])
        assert borders(costs, stages, source)[-1].ratio == ratio
    local = kv_source(STAGES, range(29, 32), same_stage=True)
    assert all(border.kv_bytes == 0 for border in borders(SEVEN_B, STAGES, local))


def test_a_far_source_crosses_every_border_on_its_way_once():
    rows = [{"cost": 5.0, "saving": 1.0, "kv_elements": 10}] * 6
    costs = listed_costs({"layers": rows, "width": 4}, 3)
    stages = stage_costs(costs, 3)
    found = borders(costs, stages, (0, 1, 1, 1, 0, 1), n_rows=2)
    assert [border.hidden_bytes for border in found] == [2 * 3 * 4 * 2] * 2
    assert [border.kv_bytes for border in found] == [2 * 2 * 3 * 10 * 2] * 2
    chunks, _ = schedule_for(costs, 2, "zbv", 4, sizes=(2, 1, 1, 2))
    assert chunks.placement == (0, 1, 1, 0)
    found = borders(costs, chunks, (0, 1, 2, 2, 4, 5))
    assert [(border.chunk, border.kv_bytes) for border in found] == [(0, 0), (2, 0)]


def test_cache_saved_is_2h_over_r_elements_per_layer():
    assert cache_bytes_saved(SEVEN_B, kv_source(STAGES, range(28, 32))) == 4 * 16_384
    grouped = model_costs("llama3-8b", 8192)
    assert cache_bytes_saved(grouped, (0, 0, 2, 2), bytes_per_element=4) == 2 * 2 * 4096


# --- plan files ---------------------------------------------------------------------


def a_plan(**options):
    return make_plan(SEVEN_B, Request(8, **options))


def test_a_saved_plan_is_loaded_as_it_was(tmp_path):
    for options in ({}, {"same_stage": True}, {"method": "uniform", "budget": 4}):
        plan = a_plan(**options)
        save(plan, tmp_path / "plan.json")
        assert load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert {row.layer for row in plan.conversions} == set(plan.shared) == {16, 21, 26, 31}


def test_a_plan_knows_the_model_it_was_made_for():
    plan = a_plan()
    plan.check_model(Config.from_hf(PRESETS["llama2-7b"]))
    with pytest.raises(ValueError, match=r"made for llama2-7b"):
        plan.check_model(Config.from_hf(PRESETS["llama3-8b"]))
    with pytest.raises(ValueError, match=r"32 layers .* the model has 40"):
        plan.check_model(Config.from_hf(PRESETS["llama2-13b"]))


def spoil(content, path, value):
    *parents, last = path
    for key in parents:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "other", "format"),
        (["version"], 2, "version 2"),
        (["kv_source", 31], 30, "layer 31 reads layer 30"),
        (["kv_source", 5], 9, "layer 5 reads layer 9"),
        (["kv_source", 28], 28, "conversions list"),
        (["kv_source", 3], "2", "whole number"),
        (["kv_source", 0], -1, "whole number"),
        (["sizes", 0], 5, "33 layers in the stages"),
        (["sizes", 0], 0, "empty stage"),
        (["placement", 7], 8, "skips a stage"),
        (["placement"], [0, 1], "one stage per chunk"),
        (["loads_after", 0], -1.0, "loads_after of stage 0"),
        (["loads_after", 0], float("nan"), "loads_after of stage 0"),
        (["loads_after", 0], 9e99, "heavier"),
        (["loads_before"], [1.0], "1 entries for 8 stages"),
        (["conversions", 0, "stage"], 3, "not on stage 3"),
        (["conversions", 0, "source"], 26, "conversions list"),
        (["conversions", 0], {"layer": 31}, "a conversion misses"),
        (["conversions"], 7, "wrong type"),
        (["conventions", "causal"], "third", "causal"),
        (["extra"], 1, "unknown"),
        (["same_stage"], True, "same stage"),
    ],
)
def test_a_spoiled_plan_is_refused_with_the_reason(tmp_path, path, value, message):
    content = json.loads(json.dumps(to_dict(a_plan())))
    spoil(content, path, value)
    with pytest.raises(ValueError, match=message):
        from_dict(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="no usable plan"):
        load(tmp_path / "plan.json")


def test_what_is_no_plan_at_all_is_refused(tmp_path):
    for text in ("", "[1]", "{", "null"):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(ValueError, match=r"plan\.json"):
            load(tmp_path / "plan.json")
    content = to_dict(a_plan())
    del content["kv_source"]
    with pytest.raises(ValueError, match=r"misses \['kv_source'\]"):
        from_dict(content)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fails(file):
        file.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fails)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="not a folder"):
        save(a_plan(), tmp_path / "missing" / "plan.json")


# --- measured signal ------------------------------------------------------------------


def test_measured_times_replace_flops_and_can_change_the_plan(tmp_path):
    times = [2.0] * 7 + [2.9]
    stages = calibrate(STAGES, times)
    assert stages.loads() == pytest.approx(times)
    speed = 2.0 / STAGES.loads()[0]
    assert stages.layers[31] == pytest.approx(speed * STAGES.layers[31])
    assert stages.extras[7] == pytest.approx(2.9 - 2.0)
    by_flops = exact(STAGES, 8, "fir").shared
    by_time = exact(calibrate(STAGES, [2.0] * 3 + [2.4] + [2.0] * 4), 8).shared
    assert set(by_flops) == {28, 29, 30, 31} and {12, 13, 14, 15} >= set(by_time) - set(by_flops)
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"stages": times, "saving": 0.05, "unit": "ms"}))
    assert read_times(path) == (times, 0.05, "ms")
    plan = a_plan(times=tuple(times), saving=0.05, unit="ms")
    assert plan.unit == "ms" and plan.loads_before == pytest.approx(times)
    assert max(plan.loads_after) == pytest.approx(2.9 - 0.05 * 4)
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan


def test_a_stage_that_is_faster_than_its_layers_is_scaled_as_a_whole():
    stages = StageCosts((4.0,) * 4, (1.0,) * 4, ("a",) * 4, ranges([2, 2]), (0.0, 2.0), (0, 1))
    fast = calibrate(stages, [16.0, 10.0])
    assert fast.loads() == pytest.approx((16.0, 10.0))
    assert fast.savings == pytest.approx((2.0, 2.0, 1.0, 1.0))
    both = calibrate(replace(stages, extras=(1.0, 2.0)), [9.0, 20.0])
    assert both.loads() == pytest.approx((9.0, 20.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, '"stages"'),
        ({"stages": []}, '"stages"'),
        ({"stages": [1.0, -2.0]}, "time of stage 1 is -2.0"),
        ({"stages": [1.0, float("nan")]}, "time of stage 1 is nan"),
        ({"stages": [1.0, "fast"]}, "'fast'"),
        ({"stages": [1.0] * 8, "saving": -1}, "measured saving"),
        ({"stages": [1.0] * 8, "savings": 1}, "unknown fields"),
    ],
)
def test_measured_times_that_cannot_be_are_refused(tmp_path, content, message):
    (tmp_path / "times.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_times(tmp_path / "times.json")


def test_measured_times_must_fit_the_stages():
    for times, saving, message in (
        ([1.0] * 7, None, "7 measured times for 8 stages"),
        ([1.0] * 7 + [0.0], None, "took no time"),
        ([1.0] * 8, 0.9, "exceeds the time of layers"),
    ):
        with pytest.raises(ValueError, match=message):
            calibrate(STAGES, times, saving)
    chunks, _ = schedule_for(SEVEN_B, 4, "zbv", 8)
    with pytest.raises(ValueError, match="one chunk per rank"):
        calibrate(chunks, [1.0] * 4)


# --- requests and the command line -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "best"}, "method 'best'"),
        ({"objective": "mean"}, "objective 'mean'"),
        ({"epsilon": 0.1}, "epsilon contradicts the method exact"),
        ({"method": "uniform", "alpha": 0.5}, "alpha contradicts the method uniform"),
        ({"method": "bipolar", "objective": "fir"}, "'fir' contradicts"),
        ({"method": "last-quarter", "budget": 3}, "a budget contradicts"),
        ({"saving": 1.0}, "needs measured stage times"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Request(8, **options)


def test_an_illegal_layer_of_a_published_method_is_named():
    costs = listed_costs({"layers": [{"cost": 9.0, "saving": 3.0}, {"cost": 1.0}]}, 1)
    with pytest.raises(ValueError, match="layer 0 cannot share"):
        make_plan(costs, Request(2, method="algorithm-1", budget=1))


PLAN = ["plan", "--config", "llama2-7b", "--stages", "8", "--seq", "8192"]


def test_plan_prints_tables_and_writes_what_it_is_asked_to(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*PLAN, "--out", "plan.json", "--plot", "out.svg"]) == 0
    text = capsys.readouterr().out
    for part in ("1.1195", "1.0004", "-10.25%", "stage 7 is 11.9% above the mean", "3.0 times",
                 "vocabulary-parallel head", "Warning"):  # fmt: skip
        assert part in text
    assert load("plan.json") == a_plan()
    assert (tmp_path / "out.svg").read_text().startswith("<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.svg", "plan.json"]


def test_json_carries_the_plan_the_ranking_and_the_exports(capsys):
    assert main(["plan", "--config", "llama3-8b", "--stages", "8", "--seq", "8192", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert from_dict(content["plan"]).shared == (28, 29, 30, 31)
    assert content["exports"][0]["megatron"] == "Et*5|t*5|t*4|t*4|t*4|t*4|t*4|t*2,L"
    assert content["exports"][0]["torchtitan"][-1][-2:] == ["norm", "output"]
    assert content["alternatives"][0]["name"] == "vocabulary-parallel head + share KV"
    assert main(["compare", *PLAN[1:], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 11
    assert main(["sweep", *PLAN[1:], "--budget", "3", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [
        "0 layers", "1 layers", "2 layers", "3 layers"
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_compare_and_sweep_show_tables_and_draw(tmp_path, capsys, command):
    assert main([command, *PLAN[1:], "--plot", str(tmp_path / "a.svg")]) == 0
    text = capsys.readouterr().out
    assert "1.1195" in text and "-10.25%" in text and (tmp_path / "a.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "llama9"], "neither a file nor a preset"),
        (["--stages", "33"], "32 layers cannot be cut into 33"),
        (["--stages", "0"], "n_ranks"),
        (["--seq", "0"], "at least 1"),
        (["--budget", "0"], "budget is 0"),
        (["--budget", "33"], "budget is 33"),
        (["--layers", "16", "15"], "2 sizes"),
        (["--stages", "2", "--layers", "16", "15"], "sum to 32"),
        (["--epsilon", "0.1"], "contradicts"),
        (["--method", "algorithm-1", "--epsilon", "-1"], "epsilon"),
        (["--alpha", "2"], "alpha"),
        (["--chunks-per-rank", "2"], "works with chunks_per_rank=1 only"),
        (["--signal", "missing.json"], "missing.json"),
        (["--signal", "nan.json"], "time of stage 1 is nan"),
        (["--signal", "short.json"], "2 measured times for 8"),
        (["--config", "lacks.json"], "lacks intermediate_size"),
        (["--config", "gpt2.json"], "model_type 'gpt2'"),
        (["--config", "heads.json"], "cannot be grouped"),
        (["--config", "negative.json"], "hidden_size is -8"),
        (["--config", "list.json"], "expected a JSON object"),
        (["--config", "broken.json"], "not valid JSON"),
        (["--config", "costs.json"], "the cost of layer 0 is nan"),
        (["--plot", "no/such/folder.svg"], "not a folder"),
        (["--plot", "out.exe"], "exe"),
        (["--out", "no/such/folder.json", "--plot", "a.svg"], "not a folder"),
        (["--plot", "no/such/folder.svg", "--out", "plan.json"], "not a folder"),
    ],
)
def test_a_mistake_ends_with_one_line_and_code_2_and_nothing_written(
    tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    small = PRESETS["smollm2-135m"]
    files = {
        "nan.json": {"stages": [1.0, float("nan")]},
        "short.json": {"stages": [1.0, 2.0]},
        "lacks.json": {k: v for k, v in small.items() if k != "intermediate_size"},
        "gpt2.json": {"model_type": "gpt2"},
        "heads.json": small | {"num_key_value_heads": 4},
        "negative.json": small | {"hidden_size": -8},
        "list.json": [1],
        "costs.json": {"format": "kvpipe-layer-costs", "layers": [{"cost": float("nan")}] * 8},
    }
    for name, content in files.items():
        (inputs / name).write_text(json.dumps(content))
    (inputs / "broken.json").write_text("{")
    arguments = [f"inputs/{a}" if (inputs / a).is_file() else a for a in arguments]
    assert main([*PLAN, "--plot", "a.svg", "--out", "plan.json", *arguments]) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.count("\n") == 1 and told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]
