"""The benchmark: both decoders do the same work, and the report says what was measured."""

import copy
import json
import os
import statistics
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kvpipe import bench, bench_report, measure
from kvpipe.bench import Ours, Task, Theirs
from kvpipe.checkpoints import fetch
from kvpipe.generate import generate

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
def report(folder, tmp_path_factory) -> dict:
    """What `python -m kvpipe.bench --quick` writes about the small model."""
    file = tmp_path_factory.mktemp("report") / "new" / "bench.json"
    bench.main(["--model", str(folder), "--quick", "--repeats", "3", "--json", str(file)])
    return json.loads(file.read_text(encoding="utf-8"))


def test_both_decode_what_they_decode_without_the_benchmark(both):
    ours, theirs = both
    tokens = bench.prompt_tokens(ours, 2, 40)
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
        run = bench._run(task, subject, bench.prompt_tokens(subject, 2, 20))
        assert run() == run() == run()


def test_no_stop_token_ends_a_run_early(both):
    ours, theirs = copy.copy(both[0]), copy.copy(both[1])
    tokens = bench.prompt_tokens(ours, 1, 20)
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
            assert bench.step_bytes(task, ours) == expected


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
    assert bench.compare(task, ours, wrong, repeats=1)["same_tokens"] is False


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
        bench.memory_and_load("nobody", folder, "float32", quick=True)


def test_the_tables_show_the_numbers(report):
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    bench_report.show(report, console)
    shown = console.export_text()
    for row in report["speed"]:
        assert f"{row['tokens_per_s']['transformers']:.1f}" in shown
        assert f"{row['ratio']:.2f}×" in shown
    for row in report["memory"]:
        assert f"{row['load_s']:.2f}" in shown
    assert report["machine"]["processor"] in shown and "transformers" in shown
    assert "…" not in shown


def test_memory_that_was_not_measured_is_said_to_be_so(report):
    unknown = {"decode_peak_bytes": None, "prefill_peak_bytes": None}
    table = bench_report.memory_table([report["memory"][0] | unknown])
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table)
    assert "not measured" in console.export_text()


@pytest.mark.model
def test_our_peak_memory_is_not_above_theirs():
    peaks = {
        name: bench.memory_and_load(name, fetch(), "float32", quick=True) for name in bench.SUBJECTS
    }
    for kind in ("decode_peak_bytes", "prefill_peak_bytes"):
        assert peaks["kvpipe"][kind] <= peaks["transformers"][kind], kind


def test_loading_leaves_torchs_compiler_alone(folder):
    code = "import sys, kvpipe.checkpoints as c; c.load_stage(sys.argv[1]); print(*sys.modules)"
    command = [sys.executable, "-c", code, str(folder)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "torch.nn" in loaded
    assert "torch._dynamo" not in loaded


def test_help_names_the_options():
    command = [sys.executable, "-m", "kvpipe.bench", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert {"--quick", "--json", "--model", "--dtype"} <= set(shown.replace("[", " ").split())
    assert "--alone" not in shown
