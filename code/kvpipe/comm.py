"""Ranks as processes: start them, wait for them, name the first one that failed.

Support module of chapters 2 and 3. `launch` runs one function on several processes of this
machine; a program that is started by `torchrun` on several machines needs none of it.
"""

from __future__ import annotations

import os
import signal
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
    `timeout_s` bounds the whole run and every single wait in it.

    Raises RankError with the traceback of the rank that failed first, TimeoutError when the run
    takes longer than `timeout_s`, ValueError for a function or a world size that cannot be run.
    """
    _check(fn, world_size, timeout_s)
    threads = threads or max(1, (os.cpu_count() or 1) // world_size)
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = (fn, args, world_size, backend, timeout_s, threads, folder)
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


def _check(fn: Callable[..., Any], world_size: int, timeout_s: float) -> None:
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; at least 1 process is needed")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be above 0")
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if (module == "__main__" and not hasattr(sys.modules["__main__"], "__file__")) or "<" in name:
        raise ValueError(
            f"{name or fn!r} is defined in a notebook or inside a function, where a new process "
            "cannot import it; put it into a module and import it from there"
        )


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
) -> None:
    """The life of one process: join the group, run, leave a result or the reason of the failure."""
    try:
        torch.set_num_threads(threads)
        _stay_on_this_machine()
        dist.init_process_group(
            backend,
            init_method=(Path(folder) / "rendezvous").as_uri(),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
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


def _await(ranks: list[Any], folder: Path, timeout_s: float) -> None:
    """Return when every rank has ended well; raise as soon as one has not."""
    deadline = time.monotonic() + timeout_s
    running = {process.sentinel: rank for rank, process in enumerate(ranks)}
    while running:
        ended = wait(list(running), timeout=max(0.0, deadline - time.monotonic()))
        if not ended:
            raise TimeoutError(
                f"ranks {sorted(running.values())} are still running after {timeout_s:g} s and "
                "were stopped; raise timeout_s if the work needs longer"
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
