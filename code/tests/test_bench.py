"""The benchmark: what is compared does the same work, and the report says what was measured."""

import copy
import json
import os
import statistics
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kvpipe import bench, bench_model, bench_part, bench_pipeline, measure
from kvpipe.bench_model import Ours, Task, Theirs
from kvpipe.checkpoints import fetch
from kvpipe.generate import generate
from kvpipe.pipeline import Span, round_robin, simulate
from kvpipe.pipeline.bench import DecodeRates
from kvpipe.pipeline.decode import DecodeReport

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def save(folder, tied: bool) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))
    model.save_pretrained(folder)
    words = {"<unk>": 0, "</s>": 1} | {letter: 2 + i for i, letter in enumerate("etaoinshrdlu")}
    words = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save(folder, tied=True)
    return folder


@pytest.fixture(scope="module")
def both(folder):
    return Ours(folder, torch.float32), Theirs(folder, torch.float32)


@pytest.fixture(scope="module")
def whole_report(folder, tmp_path_factory) -> dict:
    """What `python -m kvpipe.bench --quick` writes about the small model."""
    file = tmp_path_factory.mktemp("report") / "new" / "bench.json"
    bench.main(["--model", str(folder), "--quick", "--repeats", "3", "--json", str(file)])
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def report(whole_report) -> dict:
    return whole_report["parts"]["model"]


@pytest.fixture(scope="module")
def pipeline(whole_report) -> dict:
    return whole_report["parts"]["pipeline"]


def shown(*parts) -> str:
    """What a terminal of 80 columns shows."""
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for part in parts:
        console.print(part)
    return console.export_text()


# --- chapter 1 ---------------------------------------------------------------


def test_both_decode_what_they_decode_without_the_benchmark(both):
    ours, theirs = both
    tokens = bench_model.prompt_tokens(ours, 2, 40)
    assert tokens.shape == (2, 40) and not torch.equal(tokens[0], tokens[1])
    expected = generate(ours.model, tokens, 6)
    assert len({t for row in expected for t in row}) > 3
    for subject in both:
        assert subject.decode(tokens, subject.prefill(tokens[:, :-1]), 6) == expected
    plain = theirs.model.generate(tokens, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    assert plain[:, 40:].tolist() == expected


def test_a_decode_run_starts_from_the_same_cache_every_time(both):
    task = Task("decode", batch=2, context_tokens=20, new_tokens=4)
    for subject in both:
        run = bench_model._run(task, subject, bench_model.prompt_tokens(subject, 2, 20))
        assert run() == run() == run()


def test_no_stop_token_ends_a_run_early(both):
    ours, theirs = copy.copy(both[0]), copy.copy(both[1])
    tokens = bench_model.prompt_tokens(ours, 1, 20)
    for subject in (ours, theirs):
        subject.model = copy.deepcopy(subject.model)
    with torch.no_grad():  # the stop token wins wherever it may
        ours.model.embedding.weight[1] += 100 * ours.model.norm.weight
        theirs.model.model.embed_tokens.weight[1] += 100 * theirs.model.model.norm.weight
    for subject in (ours, theirs):
        (row,) = subject.decode(tokens, subject.prefill(tokens[:, :-1]), 5)
        assert len(row) == 5


def test_the_bytes_of_a_step_are_weights_once_and_each_rows_cache(tmp_path):
    task = Task("decode", batch=3, context_tokens=20, new_tokens=5)  # contexts 20 to 24
    matrices = 2 * (48 * 48 * 2 + 48 * 16 * 2 + 3 * 48 * 80)
    others = 97 * 48 + 5 * 48  # the head and the norms
    cache = 3 * 22 * 2 * 2 * 16
    for tied in (True, False):
        save(tmp_path / str(tied), tied)
        for dtype in (torch.float32, torch.bfloat16):
            ours = Ours(tmp_path / str(tied), dtype)
            expected = dtype.itemsize * (matrices + others + cache)
            assert bench_model.step_bytes(task, ours) == expected


def test_the_report_follows_from_its_samples(report):
    assert [row["name"] for row in report["speed"]] == ["decode", "decode", "prefill"]
    for row in report["speed"]:
        assert {len(samples) for samples in row["samples_s"].values()} == {3}
        seconds = {name: statistics.median(times) for name, times in row["samples_s"].items()}
        tokens = row["batch"] * (row["new_tokens"] or row["context_tokens"])
        for name in ("kvpipe", "transformers"):
            assert row["tokens_per_s"][name] == pytest.approx(tokens / seconds[name])
        assert row["ratio"] == pytest.approx(seconds["transformers"] / seconds["kvpipe"])


def test_a_decode_row_says_how_close_it_comes_to_the_bound(report):
    for row in report["speed"]:
        assert ("fraction_of_bound" in row) == bool(row["new_tokens"])
        if row["new_tokens"]:
            read_s = statistics.median(row["samples_s"]["read"])
            bandwidth = measure.read_run()[1] / read_s
            assert row["read_bandwidth_bytes_per_s"] == pytest.approx(bandwidth)
            for name, fraction in row["fraction_of_bound"].items():
                steps_per_s = row["tokens_per_s"][name] / row["batch"]
                assert fraction == pytest.approx(steps_per_s * row["step_bytes"] / bandwidth)


def test_both_produced_the_same_tokens(report):
    assert [row.get("same_tokens") for row in report["speed"]] == [True, True, None]


def test_different_tokens_are_noticed(both):
    ours, theirs = both
    wrong = copy.copy(theirs)
    wrong.model = copy.deepcopy(theirs.model)
    with torch.no_grad():
        wrong.model.model.layers[0].mlp.down_proj.weight.neg_()
    task = Task("decode", batch=2, context_tokens=20, new_tokens=8)
    assert bench_model.compare(task, ours, wrong, repeats=1)["same_tokens"] is False


def test_load_time_and_memory_come_from_a_process_each(report, folder):
    assert [(row["name"], row["dtype"]) for row in report["memory"]] == [
        ("kvpipe", "float32"),
        ("transformers", "float32"),
    ]
    for row in report["memory"]:
        assert 0 < row["load_s"] < row["load_and_first_token_s"]
        if measure.peak_memory_bytes() is not None:
            assert 5e7 < row["decode_peak_bytes"] <= row["prefill_peak_bytes"] < 3e9


def test_a_process_that_fails_says_why(folder):
    with pytest.raises(
        RuntimeError, match=r"nobody failed in a process of its own:\n(.|\n)*nobody"
    ):
        bench_model.memory_and_load("nobody", folder, "float32", quick=True)


def test_the_tables_show_the_numbers(report):
    text = shown(*bench_model.tables(report))
    for row in report["speed"]:
        assert f"{row['tokens_per_s']['transformers']:.1f}" in text
        assert f"{row['ratio']:.2f}×" in text
    for row in report["memory"]:
        assert f"{row['load_s']:.2f}" in text
    assert "transformers" in text and "…" not in text


def test_memory_that_was_not_measured_is_said_to_be_so(report):
    unknown = {"decode_peak_bytes": None, "prefill_peak_bytes": None}
    assert "not measured" in shown(bench_model.memory_table([report["memory"][0] | unknown]))


@pytest.mark.model
def test_our_peak_memory_is_not_above_theirs():
    peaks = {
        name: bench_model.memory_and_load(name, fetch(), "float32", quick=True)
        for name in bench_model.SUBJECTS
    }
    for kind in ("decode_peak_bytes", "prefill_peak_bytes"):
        assert peaks["kvpipe"][kind] <= peaks["transformers"][kind], kind


def test_loading_leaves_torchs_compiler_alone(folder):
    code = "import sys, kvpipe.checkpoints as c; c.load_stage(sys.argv[1]); print(*sys.modules)"
    command = [sys.executable, "-c", code, str(folder)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "torch.nn" in loaded
    assert "torch._dynamo" not in loaded


# --- chapter 2 ---------------------------------------------------------------

STEPS = 4  # decoding steps of the made-up runs


def made_up(stage_s: list[float], n: int, slower: float = 1.0, token: int = 7) -> list:
    """Reports of every rank, for `n` batches whose stages take exactly `stage_s` seconds."""
    run = simulate(round_robin(len(stage_s), n, STEPS), lambda op: stage_s[op.chunk] * slower)
    moved = [tuple(Span(op, 9 + a, 9 + b) for op, a, b in spans) for spans in run.spans]
    return [DecodeReport([[[token]]] * n, spans, (), {}, 0) for spans in moved]


def made_up_ranks(token: int = 7) -> list[DecodeRates]:
    """Stages of 3 and 5 s; alone in 6 s a step, and with two batches half as fast as could be."""
    runs = {1: made_up([3, 5], 1), 2: made_up([3, 5], 2, 2.0, token), 4: made_up([3, 5], 4)}
    ranks = [DecodeRates(0.0, {}, {n: [run[rank]] for n, run in runs.items()}) for rank in (0, 1)]
    ranks[0].alone[1], ranks[0].alone[3] = made_up([6], 1), made_up([2], 1)
    return ranks


def test_the_ideal_rate_follows_from_the_stage_times_of_one_batch():
    alone, alone_3, *together = bench_pipeline.rows_of(made_up_ranks(), STEPS)
    # Rank 1 starts after 3 s and is never idle again: n batches take 3 + 4 * 5 n.
    assert [row["ideal_tokens_per_s"] for row in together] == [4 / 32, 8 / 43, 16 / 83]
    assert (alone["ideal_tokens_per_s"], alone_3["ideal_tokens_per_s"]) == (4 / 32, None)
    assert [row["tokens_per_s"] for row in together] == [4 / 32, 4 / 43, 16 / 83]
    assert [row["speedup"] for row in (alone, alone_3, *together)] == pytest.approx(
        [1, 3, 6 / 8, 24 / 43, 6 * 16 / 83]
    )
    assert [(row["processes"], row["threads"], row["in_flight"]) for row in (alone, alone_3)] == [
        (1, 1, 1),
        (1, 3, 1),
    ]


def test_a_message_between_the_ranks_makes_the_ideal_slower():
    ranks = made_up_ranks()
    ranks[0].link_s = 0.5
    one = bench_pipeline.rows_of(ranks, STEPS)[2]
    assert one["ideal_tokens_per_s"] == 4 / (4 * (3 + 5 + 2 * 0.5) - 0.5)  # no lap after the last


def test_a_batch_with_other_tokens_is_noticed():
    rows = bench_pipeline.rows_of(made_up_ranks(token=8), STEPS)
    assert [row.get("same_tokens") for row in rows] == [None, None, True, False, True]


def test_decoding_is_measured_with_one_two_and_four_batches_in_flight(pipeline):
    rows = pipeline["decode"]
    assert [(row["processes"], row["in_flight"]) for row in rows] == [
        (1, 1),
        (2, 1),
        (2, 2),
        (2, 4),
    ]
    assert all(row["same_tokens"] for row in rows[1:])
    for row in rows:
        assert len(row["samples_s"]) == 3 and row["ideal_tokens_per_s"] > 0
        tokens = row["in_flight"] * row["new_tokens"]
        assert row["tokens_per_s"] == pytest.approx(tokens / statistics.median(row["samples_s"]))
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / rows[0]["tokens_per_s"])


def test_the_simulator_is_timed_on_64_ranks_and_512_micro_batches(pipeline):
    operations = {row["schedule"]: row["operations"] for row in pipeline["simulator"]}
    passes = {"gpipe": 2, "1f1b": 2, "zb-h1": 3}
    assert operations == {name: n * 64 * 512 for name, n in passes.items()}
    assert all(row["build_s"] > 0 and row["simulate_s"] > 0 for row in pipeline["simulator"])


def test_a_step_takes_as_long_as_its_slowest_rank_and_the_median_step_counts():
    ranks = [{"kvpipe": [1, 5, 2], "torch": [6, 1, 1]}, {"kvpipe": [3, 4, 1], "torch": [1, 2, 9]}]
    row = bench_pipeline.engine_row(ranks)
    assert row["samples_s"] == {"kvpipe": [3, 5, 2], "torch": [6, 2, 9]}
    assert row["step_s"] == {"kvpipe": 3, "torch": 6} and row["ratio"] == 2


def test_both_engines_train_the_model_and_a_very_small_one(pipeline):
    rows = pipeline["engines"]
    assert [(row["model"], row["schedule"]) for row in rows] == [
        ("checkpoint", "1f1b"),
        ("very small", "1f1b"),
    ]
    for row, rounds in zip(rows, (3, 30), strict=True):
        assert {engine: len(s) for engine, s in row["samples_s"].items()} == {
            "kvpipe": rounds,
            "torch": rounds,
        }
        assert row["ratio"] == pytest.approx(row["step_s"]["torch"] / row["step_s"]["kvpipe"])


def test_the_tables_of_the_pipeline_show_the_numbers(pipeline):
    text = shown(*bench_pipeline.tables(pipeline))
    for row in pipeline["decode"]:
        assert f"{row['tokens_per_s']:.1f}" in text and f"{row['ideal_tokens_per_s']:.1f}" in text
        assert f"{row['speedup']:.2f}×" in text
    for row in pipeline["simulator"]:
        assert f"{row['operations']:,}" in text and f"{row['simulate_s']:.2f}" in text
    for row in pipeline["engines"]:
        assert f"{1000 * row['step_s']['torch']:.1f}" in text and f"{row['ratio']:.2f}×" in text
    assert "…" not in text
    without_ideal = bench_pipeline.rows_of(made_up_ranks(), STEPS)
    assert "None" not in shown(bench_pipeline.decode_table(without_ideal))


# --- the command -------------------------------------------------------------


def test_only_the_named_parts_run(folder, tmp_path, monkeypatch, capsys):
    def part(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            numbers=lambda settings: {"rounds": settings.repeats, "dtypes": settings.dtypes},
            tables=lambda found: [f"{name} took {found['rounds']} rounds"],
        )

    monkeypatch.setattr(bench, "PARTS", {name: part(name) for name in ("one", "two", "three")})
    file = tmp_path / "bench.json"
    bench.main(["three", "one", "--model", str(folder), "--json", str(file), "--quick"])
    report = json.loads(file.read_text(encoding="utf-8"))
    found = {"rounds": 2, "dtypes": ["float32"]}
    assert report["parts"] == {"three": found, "one": found} and report["quick"] is True
    text = capsys.readouterr().out
    assert "three took 2 rounds" in text and "one took 2 rounds" in text and "two" not in text
    assert report["machine"]["processor"] in text and folder.name in text
    bench.main(["--model", str(folder), "--json", str(file)])
    report = json.loads(file.read_text(encoding="utf-8"))
    assert list(report["parts"]) == ["one", "two", "three"]
    assert report["parts"]["one"] == {"rounds": 7, "dtypes": ["float32", "bfloat16"]}


def test_a_part_that_does_not_exist_is_answered_with_those_that_do(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["pipelin"])
    assert "no part pipelin; there are: model, pipeline" in capsys.readouterr().err


def test_a_part_chooses_its_rounds_unless_they_are_given(folder):
    given = {"folder": folder, "rounds": 5}
    settings = (bench_part.Settings(**given), bench_part.Settings(**given, quick=True))
    assert [each.repeats for each in settings] == [5, 5]
    assert bench_part.Settings(folder).repeats > bench_part.Settings(folder, quick=True).repeats


def test_help_names_the_parts_and_options():
    command = [sys.executable, "-m", "kvpipe.bench", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {"--quick", "--json", "--model", "--dtype"} <= set(text.replace("[", " ").split())
    assert "model, pipeline" in text
