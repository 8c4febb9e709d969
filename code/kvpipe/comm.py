"""Ranks as processes: start them, wait for them, name the first one that failed.

Support module of chapters 2 and 3. `launch` runs one function on several processes of this
machine. A program that `torchrun` starts, on one machine or several, calls `join` instead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

GRACE_S = 5.0  # between asking a process to end and ending it


@dataclass
class RankError(RuntimeError):
    """A rank failed; the others were stopped. The message holds the first cause."""

    rank: int
    cause: str  # the traceback, or how the process ended

    def __str__(self) -> str:
        return f"rank {self.rank} failed first; the other ranks were stopped\n{self.cause}"


def launch(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    backend: str = "gloo",
    timeout_s: float = 120.0,
    threads: int | None = None,
) -> list[Any]:
    """Run `fn(group, *args)` on `world_size` new processes; return each rank's result, in order.

    `group` is the process group of all ranks (`group.rank()`, `group.size()`). `fn` must be
    importable by name, because the processes start from nothing: define it in a module, not in
    a notebook cell. `threads` is torch's threads per rank, by default an equal share of the cores.
    `timeout_s` bounds the whole run. With backend "nccl", rank r uses GPU r for tensors that lie
    there, and tensors of the host still travel by gloo.

    Raises RankError with the traceback of the rank that failed first, TimeoutError when the run
    takes longer than `timeout_s`, with the line at which each rank stood, and ValueError for a
    function or a world size that cannot be run.
    """
    _check(fn, world_size, backend, timeout_s)
    threads = threads or max(1, (os.cpu_count() or 1) // world_size)
    context = _context()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = (fn, args, world_size, backend, timeout_s, threads, folder, dict(os.environ))
        ranks = [
            context.Process(target=_run_rank, args=(rank, *job), name=f"rank {rank}", daemon=True)
            for rank in range(world_size)
        ]
        try:
            for process in ranks:
                process.start()
            _await(ranks, Path(folder), timeout_s)
            return [
                torch.load(_file(folder, r, "result"), weights_only=False)
                for r in range(world_size)
            ]
        finally:
            _stop(ranks)


def join(backend: str = "gloo", timeout_s: float = 600.0) -> dist.ProcessGroup:
    """Join the group that `torchrun` describes in the environment; leave it at the end.

    `timeout_s` bounds every single wait. Raises ValueError outside of `torchrun`.
    """
    missing = [
        n for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR") if n not in os.environ
    ]
    if missing:
        raise ValueError(f"{', '.join(missing)} not in the environment; start this with torchrun")
    if os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        _stay_on_this_machine()
    _take_gpu(backend, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(_devices(backend), timeout=timedelta(seconds=timeout_s))
    return dist.group.WORLD


def link_s(group: dist.ProcessGroup, n_bytes: int, repeats: int = 20) -> float:
    """Median seconds of one message between ranks 0 and 1 of `group`: half a round trip.

    All ranks call it; all get the result.
    """
    if group.size() < 2:
        raise ValueError("a message needs two ranks, the group has one")
    buffer = torch.zeros(n_bytes, dtype=torch.uint8)
    rank, times = group.rank(), []
    for _ in range(repeats + 1 if rank < 2 else 0):
        start = time.perf_counter()
        for source in (0, 1):
            if rank == source:
                dist.send(buffer, group=group, group_dst=1 - rank)
            else:
                dist.recv(buffer, group=group, group_src=source)
        times.append((time.perf_counter() - start) / 2)
    result = [statistics.median(times[1:]) if rank == 0 else 0.0]
    dist.broadcast_object_list(result, group=group, group_src=0)
    return result[0]


def _check(fn: Callable[..., Any], world_size: int, backend: str, timeout_s: float) -> None:
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; at least 1 process is needed")
    if backend == "nccl" and world_size > torch.cuda.device_count():
        raise ValueError(
            f"backend nccl needs a GPU per rank: {world_size} ranks, "
            f"{torch.cuda.device_count()} GPUs; backend gloo runs on CPUs"
        )
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be above 0")
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if (module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")) or "<" in name:
        raise ValueError(
            f"{name or repr(fn)} is defined in a notebook or inside a function, where a new "
            "process cannot import it; put it into a module and import it from there"
        )


def _context() -> Any:
    """How processes start: from nothing, so that they inherit no thread, lock or open file.

    On Linux they are forked from a server that has done no more than import torch, which saves
    each of them those seconds.
    """
    if sys.platform != "linux":
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    return context


def _file(folder: str | Path, rank: int, kind: str) -> Path:
    return Path(folder) / f"{kind}-{rank}"


def _run_rank(
    rank: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    world_size: int,
    backend: str,
    timeout_s: float,
    threads: int,
    folder: str,
    environment: dict[str, str],
) -> None:
    """The life of one process: join the group, run, leave a result or the reason of the failure."""
    try:
        os.environ.update(environment)
        torch.set_num_threads(threads)
        _show_stack_on_request(folder, rank)
        _stay_on_this_machine()
        _take_gpu(backend, rank)
        dist.init_process_group(
            _devices(backend),
            init_method=(Path(folder) / "rendezvous").as_uri(),
            rank=rank,
            world_size=world_size,
            # Longer than the run, so that who waits for whom is still to be seen at its end.
            timeout=timedelta(seconds=timeout_s + 2 * GRACE_S),
        )
        result = fn(dist.group.WORLD, *args)
        torch.save(result, _file(folder, rank, "result"))
        dist.destroy_process_group()
    except BaseException:
        _file(folder, rank, "error").write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)  # no goodbye to a group that may be stuck


def _stay_on_this_machine() -> None:
    """Let gloo use the loopback device: the host's own name may not resolve."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    if sys.platform != "win32":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _devices(backend: str) -> str:
    """NCCL moves memory of GPUs only; what lies on the host goes by gloo."""
    return "cpu:gloo,cuda:nccl" if backend == "nccl" else backend


def _take_gpu(backend: str, local_rank: int) -> None:
    if backend == "nccl":
        torch.cuda.set_device(local_rank)


def _show_stack_on_request(folder: str, rank: int) -> None:
    """On SIGUSR1, write down where this process stands (not on Windows)."""
    if hasattr(signal, "SIGUSR1"):
        file = _file(folder, rank, "stack").open("w")
        faulthandler.register(signal.SIGUSR1, file, all_threads=False)


def _stacks(ranks: list[Any], late: list[int], folder: Path) -> str:
    """Where the ranks that are still running stand: their lines, innermost first."""
    files = {rank: _file(folder, rank, "stack") for rank in late}
    asked = [r for r in late if hasattr(signal, "SIGUSR1") and files[r].exists()]
    for rank in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[rank].pid, signal.SIGUSR1)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and not all(files[r].stat().st_size for r in asked):
        time.sleep(0.05)
    time.sleep(0.1)  # the rest of the lines
    return "\n".join(f"rank {rank} stands at\n{_lines(files[rank])}" for rank in late)


def _lines(stack: Path) -> str:
    lines = stack.read_text(encoding="utf-8").splitlines() if stack.exists() else []
    return "\n".join(line for line in lines if line.startswith("  File")) or "  (unknown)"


def _await(ranks: list[Any], folder: Path, timeout_s: float) -> None:
    """Return when every rank has ended well; raise as soon as one has not."""
    deadline = time.monotonic() + timeout_s
    running = {process.sentinel: rank for rank, process in enumerate(ranks)}
    while running:
        ended = wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
        if not ended:
            late = sorted(running.values())
            raise TimeoutError(
                f"ranks {late} are still running after {timeout_s:g} s and were stopped; raise "
                f"timeout_s if the work needs longer\n{_stacks(ranks, late, folder)}"
            )
        failed = [r for r in (running.pop(sentinel) for sentinel in ended) if _code(ranks[r])]
        if failed:
            raise _first_failure(failed, ranks, folder)


def _code(process: Any) -> int:
    process.join()
    return process.exitcode


def _first_failure(failed: list[int], ranks: list[Any], folder: Path) -> RankError:
    """Of several ranks found dead at once: one that was killed, else the earliest error.

    Ranks that lose a partner fail too, a moment later; theirs is not the cause.
    """
    time.sleep(0.1)
    dead = sorted({*failed, *(r for r, p in enumerate(ranks) if p.exitcode)})
    killed = [r for r in dead if ranks[r].exitcode < 0 or not _file(folder, r, "error").exists()]
    if killed:
        return RankError(killed[0], _ending(ranks[killed[0]].exitcode))
    first = min(dead, key=lambda r: _file(folder, r, "error").stat().st_mtime_ns)
    return RankError(first, _file(folder, first, "error").read_text(encoding="utf-8"))


def _ending(code: int) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code} before it returned a result"


def _stop(ranks: list[Any]) -> None:
    """End every process that is still running, politely first."""
    for process in ranks:
        if process.pid is not None and process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE_S
    for process in ranks:
        if process.pid is not None:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
