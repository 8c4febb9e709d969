"""What `kvpipe.measure` counts, and in which order it calls what it times."""

import json
import subprocess
import sys
import time

import pytest
import torch

from kvpipe import measure


def test_runs_take_turns_and_warm_up_is_not_counted():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "AB"}
    samples = measure.interleaved_s(runs, repeats=3, warmup=2)
    assert calls == list("ABABABABAB")
    assert {name: len(times) for name, times in samples.items()} == {"A": 3, "B": 3}


def test_times_are_seconds_of_the_right_run():
    runs = {"short": lambda: time.sleep(0.01), "long": lambda: time.sleep(0.05)}
    samples = measure.interleaved_s(runs, repeats=2, warmup=0)
    assert all(t >= 0.01 for t in samples["short"]) and all(t >= 0.05 for t in samples["long"])
    assert min(samples["short"]) < 0.05
    assert min(samples["long"]) < 2


def test_the_median_ignores_one_disturbance_and_the_warm_up():
    waits = iter([0.3, 0, 0.3, 0])
    assert measure.median_s(lambda: time.sleep(next(waits)), repeats=3, warmup=1) < 0.1


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 1), (-1, 0), (1, -1)])
def test_nothing_to_measure_is_refused(repeats, warmup):
    with pytest.raises(ValueError, match=rf"repeats is {repeats} and warmup {warmup}"):
        measure.interleaved_s({}, repeats, warmup)


def test_bytes_of_shared_memory_count_once():
    weight = torch.zeros(3, 5)
    other = torch.zeros(3, 5, dtype=torch.bfloat16)
    assert measure.tensor_bytes([weight, other, weight, weight.view(15)]) == 60 + 30
    # Two halves of one buffer are different memory.
    assert measure.tensor_bytes(torch.zeros(4, 5).split(2)) == 80


def test_weight_bytes_are_the_parameters_counted_by_the_config(tiny):
    for family in ("llama-3-tied", "qwen2", "qwen3"):
        ours, _ = tiny(family)
        assert measure.weight_bytes(ours) == 4 * ours.config.n_parameters()


def test_a_read_touches_all_it_says():
    run, n_bytes = measure.read_run(4000)
    assert n_bytes == 4000
    assert run() == 1000


def test_bandwidth_and_arithmetic_are_those_of_a_computer():
    bandwidth = measure.read_bandwidth_bytes_per_s(2**24, repeats=3)
    assert 1e8 < bandwidth < 1e13
    flops = measure.matmul_flops_per_s(256, repeats=3)
    assert 1e8 < flops < 1e15


def test_bandwidth_is_bytes_per_second(monkeypatch):
    monkeypatch.setattr(measure, "time_s", lambda run: 0.5)
    assert measure.read_bandwidth_bytes_per_s(4096) == 8192
    assert measure.matmul_flops_per_s(64) == 2 * 64**3 / 0.5


def peak_in_a_fresh_process(code: str) -> int:
    code += "\nfrom kvpipe import measure; print(measure.peak_memory_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(measure.peak_memory_bytes() is None, reason="the system does not say")
def test_the_peak_is_of_this_process_alone_and_remembers():
    held = torch.ones(2**27)  # 512 MiB here, which a child must not inherit
    small = peak_in_a_fresh_process("import torch")
    assert held.nbytes < measure.peak_memory_bytes()
    assert small < 2**29
    grown = peak_in_a_fresh_process("import torch; torch.ones(2**26)")  # freed at once
    assert 0.9 * 2**28 < grown - small < 1.2 * 2**28


def test_the_machine_is_named_with_its_versions():
    found = measure.machine(["torch"])
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["processor"] and found["cores"] >= 1
    assert json.loads(json.dumps(found)) == found
