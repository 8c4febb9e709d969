"""Time, bytes and bandwidth, with the unit in every name. Support module.

A time on a machine that does other things too is noise around a floor. So everything here warms up
first, repeats, and gives all samples or their median; and what is to be compared takes turns.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

Run = Callable[[], object]


def time_s(run: Run) -> float:
    """Seconds one call takes, work queued on a GPU included."""
    _finish_gpu_work()
    start = time.perf_counter()
    run()
    _finish_gpu_work()
    return time.perf_counter() - start


def median_s(run: Run, repeats: int = 7, warmup: int = 2) -> float:
    """Median seconds of `repeats` calls after `warmup` calls that do not count."""
    return statistics.median(interleaved_s({"run": run}, repeats, warmup)["run"])


def interleaved_s(
    runs: Mapping[str, Run], repeats: int = 7, warmup: int = 1
) -> dict[str, list[float]]:
    """Seconds of every call of every run, called in turns: A B C, A B C, ...

    A disturbance that lasts longer than one round hits all alike, so the ratio of two medians
    holds on a busy machine where neither median does.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats is {repeats} and warmup {warmup}; they must be >= 1 and >= 0")
    samples = [{name: time_s(run) for name, run in runs.items()} for _ in range(warmup + repeats)]
    return {name: [sample[name] for sample in samples[warmup:]] for name in runs}


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the elements of `tensors`; the same memory given twice counts once."""
    distinct = {(t.device, t.data_ptr(), t.nbytes): t.nbytes for t in tensors}
    return sum(distinct.values())


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters. With tied embeddings, a decode step reads each of them once.

    Without, it reads only a few rows of the embedding: subtract that matrix.
    """
    return tensor_bytes(model.parameters())


def read_run(size_bytes: int = 2**28) -> tuple[Run, int]:
    """A run that reads as fast as torch can, and the bytes that it reads.

    It sums one float32 buffer, much larger than the processor's caches, on all of torch's
    threads.
    """
    buffer = torch.ones(size_bytes // 4)
    return buffer.sum, buffer.nbytes


def read_bandwidth_bytes_per_s(size_bytes: int = 2**28, repeats: int = 7) -> float:
    """Measured bytes per second of `read_run`: what a memory-bound step cannot exceed."""
    run, n_bytes = read_run(size_bytes)
    return n_bytes / median_s(run, repeats)


def matmul_flops_per_s(
    size: int = 1024, dtype: torch.dtype = torch.float32, repeats: int = 7
) -> float:
    """Measured floating-point operations per second of one square product, 2 * size**3 each.

    The product is the one that the decoder uses (`kvpipe.linear`), on all of torch's threads.
    """
    from kvpipe.linear import linear

    a, b = torch.randn(2, size, size).to(dtype)
    return 2 * size**3 / median_s(lambda: linear(a, b), repeats)


def peak_memory_bytes() -> int | None:
    """The most memory this process has had resident at once, mapped files included.

    None where the operating system does not say (Windows).
    """
    try:
        # On Linux `ru_maxrss` survives exec: a small child would report its parent's peak.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine(packages: Iterable[str] = ("torch", "transformers", "numpy")) -> dict[str, str | int]:
    """What a measurement depends on: processor, cores, threads, system and versions."""
    return {
        "processor": _processor_name(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def _finish_gpu_work() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
