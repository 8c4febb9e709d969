"""Ranks as processes: results in order, the first cause by name, and never a hang."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from kvpipe import comm

SOON_S = 30  # on a busy machine; without the launcher's care these cases last 300 s


def describe(group, factor, *, offset=0):
    """What a rank sees: its place, its threads, its environment, and a sum over all ranks."""
    total = torch.tensor([group.rank() * factor + 1.0])
    dist.all_reduce(total, group=group)
    return group.rank(), group.size(), torch.get_num_threads(), os.environ["KV_TEST"], total.item()


def late_order(group):
    """The last rank ends first."""
    time.sleep(0.2 * (group.size() - group.rank()))
    return f"rank {group.rank()}"


def fail(group, how):
    """Rank 1 ends badly while rank 0 waits for a message that it will never send."""
    if group.rank() == 0:
        dist.recv(torch.zeros(1), group=group, group_src=1)
    if how == "raises":
        raise ZeroDivisionError("the cause, in words")
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        os._exit(3)
    if how == "cannot hand over":
        return (i for i in range(2))  # a generator cannot be saved
    return None


def wait_for_each_other(group):
    """Both ranks receive first: the classic deadlock."""
    dist.recv(torch.zeros(1), group=group, group_src=1 - group.rank())


def measure_link(group):
    return comm.link_s(group, 1000, repeats=3)


def test_every_rank_returns_its_result_in_order(monkeypatch):
    monkeypatch.setenv("KV_TEST", "set later than the first launch")
    results = comm.launch(describe, 3, 10, timeout_s=120, threads=1)
    assert results == [(r, 3, 1, "set later than the first launch", 33.0) for r in range(3)]
    assert comm.launch(late_order, 2, timeout_s=120) == ["rank 0", "rank 1"]


def test_one_rank_is_a_group_too(monkeypatch):
    monkeypatch.setenv("KV_TEST", "")
    assert comm.launch(describe, 1, 5, timeout_s=120, threads=2) == [(0, 1, 2, "", 1.0)]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raises", "ZeroDivisionError: the cause, in words"),
        ("is killed", "ended by SIGKILL"),
        ("exits", "exit code 3"),
        ("cannot hand over", "generator"),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_is_named(how, told):
    start = time.monotonic()
    with pytest.raises(comm.RankError) as error:
        comm.launch(fail, 2, how, timeout_s=300, threads=1)
    assert time.monotonic() - start < SOON_S
    assert error.value.rank == 1
    assert told in str(error.value)
    assert str(error.value).startswith("rank 1 failed first")
    assert multiprocessing.active_children() == []


def test_ranks_that_wait_for_each_other_are_stopped_and_shown():
    start = time.monotonic()
    with pytest.raises(TimeoutError) as error:
        comm.launch(wait_for_each_other, 2, timeout_s=8, threads=1)
    assert time.monotonic() - start < 8 + SOON_S
    assert "ranks [0, 1] are still running after 8 s" in str(error.value)
    assert str(error.value).count("in wait_for_each_other") == 2, "where each rank stands"
    assert multiprocessing.active_children() == []


def test_a_message_takes_the_same_time_for_all_ranks():
    seconds = comm.launch(measure_link, 3, timeout_s=120, threads=1)
    assert len(set(seconds)) == 1
    assert 0 < seconds[0] < 5


def local_function():
    def inner(group):
        return None

    return inner


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ((describe, 0), {}, "world_size is 0"),
        ((describe, 2), {"timeout_s": 0}, "timeout_s is 0"),
        ((lambda group: None, 2), {}, "put it into a module"),
        ((local_function(), 2), {}, "put it into a module"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments, options, told):
    with pytest.raises(ValueError, match=told):
        comm.launch(*arguments, **options)


def test_a_function_of_a_notebook_is_refused():
    """A notebook is a main program without a file, and so is `python -c`."""
    program = "from kvpipe import comm\ndef job(group): pass\ncomm.launch(job, 2)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert "job is defined in a notebook" in done.stderr


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="this machine has two GPUs")
def test_nccl_without_a_gpu_per_rank_is_refused():
    with pytest.raises(ValueError, match="backend nccl needs a GPU per rank: 2 ranks"):
        comm.launch(describe, 2, 1, backend="nccl")


def test_joining_without_torchrun_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match=r"RANK.*start this with torchrun"):
        comm.join()
