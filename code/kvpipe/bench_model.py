"""The benchmark of chapter 1: our decoder beside `transformers`, on the same weights.

Speed and bandwidth of both come from one process, in turns. Memory and load time come from a
fresh process each: `python -m kvpipe.bench_model` is that process.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from kvpipe import measure
from kvpipe.bench_part import Settings, medians, megabytes, table
from kvpipe.cache import KVCache
from kvpipe.checkpoints import load
from kvpipe.generate import generate

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Task:
    """One thing to time. Without new tokens it is the prefill of `context_tokens`."""

    name: str
    batch: int  # rows decoded together
    context_tokens: int  # tokens of each row before the first new one
    new_tokens: int = 0  # tokens decoded for each row

    @property
    def timed_tokens(self) -> int:
        return self.batch * (self.new_tokens or self.context_tokens)


TASKS = (
    Task("decode", batch=1, context_tokens=512, new_tokens=32),
    Task("decode", batch=8, context_tokens=512, new_tokens=8),
    Task("prefill", batch=1, context_tokens=2048),
)
QUICK_TASKS = (
    Task("decode", batch=1, context_tokens=128, new_tokens=8),
    Task("decode", batch=8, context_tokens=64, new_tokens=2),
    Task("prefill", batch=1, context_tokens=256),
)


class Ours:
    """This book's decoder."""

    name = "kvpipe"

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.model, self.tokenizer = load(folder, dtype=dtype)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, new_tokens: int = 0) -> KVCache:
        """The cache of `tokens`, with room for `new_tokens` more."""
        cache = KVCache(capacity=tokens.shape[1] + new_tokens)
        self.model(tokens, None, cache, n_logits=1)
        return cache

    def decode(self, tokens: Tensor, cache: KVCache, n: int) -> list[list[int]]:
        """`n` tokens per row after `tokens`, of which the cache has seen all but the last."""
        return generate(self.model, tokens[:, -1:], n, cache=cache)


class Theirs:
    """Hugging Face `transformers`, as it comes."""

    name = "transformers"

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, new_tokens: int = 0):
        """The cache of `tokens`; it grows by copying, so it needs no room."""
        return self.model(tokens, use_cache=True, logits_to_keep=1).cache

    def decode(self, tokens: Tensor, cache, n: int) -> list[list[int]]:
        lengths = {"min_new_tokens": n, "max_new_tokens": n}
        out = self.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), cache=cache, do_sample=False, **lengths
        )
        return out[:, tokens.shape[1] :].tolist()


SUBJECTS = {subject.name: subject for subject in (Ours, Theirs)}


def compare(task: Task, ours: Ours, theirs: Theirs, repeats: int) -> dict:
    """Both on one task, in turns with a plain read of memory: one row of the report."""
    tokens = prompt_tokens(ours, task.batch, task.context_tokens)
    read, read_bytes = measure.read_run()
    runs = {subject.name: _run(task, subject, tokens) for subject in (ours, theirs)}
    samples_s = measure.interleaved_s({**runs, "read": read}, repeats)
    seconds = medians(samples_s)
    row = asdict(task) | {
        "tokens_per_s": {name: task.timed_tokens / seconds[name] for name in SUBJECTS},
        "ratio": seconds["transformers"] / seconds["kvpipe"],
        "samples_s": samples_s,
    }
    if task.new_tokens:
        bound_s = task.new_tokens * step_bytes(task, ours) / (read_bytes / seconds["read"])
        row["read_bandwidth_bytes_per_s"] = read_bytes / seconds["read"]
        row["step_bytes"] = step_bytes(task, ours)
        row["fraction_of_bound"] = {name: bound_s / seconds[name] for name in SUBJECTS}
        row["same_tokens"] = runs["kvpipe"]() == runs["transformers"]()
    return row


def _run(task: Task, subject: Ours | Theirs, tokens: Tensor) -> measure.Run:
    if not task.new_tokens:
        return lambda: subject.prefill(tokens)
    cache = subject.prefill(tokens[:, :-1], 1 + task.new_tokens)
    return lambda: subject.decode(tokens, copy.deepcopy(cache), task.new_tokens)


def step_bytes(task: Task, ours: Ours) -> int:
    """Bytes a decode step must read: weights once, and the cache of each row (mean length)."""
    config, dtype = ours.model.config, next(ours.model.parameters()).dtype
    weights = measure.weight_bytes(ours.model)
    if not config.tied_embeddings:
        weights -= ours.model.embedding.weight.nbytes
    mean_context = task.context_tokens + (task.new_tokens - 1) / 2
    return round(weights + task.batch * mean_context * config.kv_bytes_per_token(dtype.itemsize))


def prompt_tokens(ours: Ours, batch: int, n: int) -> Tensor:
    """English that every Python has, (batch, n) tokens: each row starts at another place."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))[: 7 * batch * n]
    ids = ours.tokenizer(text, add_special_tokens=False).input_ids
    return torch.tensor(ids[: batch * n]).view(batch, n)


def memory_and_load(name: str, folder: Path, dtype: str, quick: bool) -> dict[str, float]:
    """Load time and peak memory of `name`, measured by a fresh process."""
    command = [sys.executable, "-m", "kvpipe.bench_model", name, str(folder), dtype]
    command += ["quick"] if quick else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed in a process of its own:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def alone(name: str, folder: Path, dtype: str, quick: bool) -> dict[str, float]:
    """Load `name` in this process, decode and prefill once: seconds and the peak so far."""
    decode_task, _, prefill_task = QUICK_TASKS if quick else TASKS
    start = time.perf_counter()
    subject = SUBJECTS[name](folder, DTYPES[dtype])
    load_s = time.perf_counter() - start
    one = torch.ones(1, 2, dtype=torch.long)
    subject.decode(one, subject.prefill(one[:, :1]), 1)
    first_token_s = time.perf_counter() - start
    tokens = prompt_tokens(subject, 1, decode_task.context_tokens)
    _run(decode_task, subject, tokens)()
    decode_peak = measure.peak_memory_bytes()
    subject.prefill(prompt_tokens(subject, 1, prefill_task.context_tokens))
    return {
        "load_s": load_s,
        "load_and_first_token_s": first_token_s,
        "decode_peak_bytes": decode_peak,
        "prefill_peak_bytes": measure.peak_memory_bytes(),
    }


def numbers(settings: Settings) -> dict:
    """Every task in every dtype, then memory: {"speed": rows, "memory": rows}."""
    folder, say = settings.folder, settings.console.status
    speed, memory = [], []
    for dtype in settings.dtypes:
        ours, theirs = Ours(folder, DTYPES[dtype]), Theirs(folder, DTYPES[dtype])
        for task in QUICK_TASKS if settings.quick else TASKS:
            with say(f"{task.name}, {dtype} ..."):
                speed.append({"dtype": dtype} | compare(task, ours, theirs, settings.repeats))
        del ours, theirs
        for name in SUBJECTS:
            with say(f"memory of {name}, {dtype} ..."):
                found = memory_and_load(name, folder, dtype, settings.quick)
                memory.append({"dtype": dtype, "name": name} | found)
    return {"speed": speed, "memory": memory}


def tables(found: dict) -> list[Table]:
    """What `numbers` found, for a terminal."""
    return [speed_table(found["speed"]), memory_table(found["memory"])]


def speed_table(rows: list[dict]) -> Table:
    """Tokens per second of both, their ratio, and how close a decode step comes to the bound."""
    columns = ("rows", "context", "kvpipe", "transformers", "ratio", "GB/s", "bound")
    caption = (
        "GB/s: summing one large buffer, in turns with the runs. Bound: kvpipe's speed ÷ the "
        "speed at which reading the weights and the cache once per step would be all the work."
    )
    shown = table("Tokens per second", 2, columns, caption)
    for row in rows:
        speed = row["tokens_per_s"]
        shown.add_row(
            row["name"],
            row["dtype"],
            str(row["batch"]),
            str(row["context_tokens"]),
            f"{speed['kvpipe']:.1f}",
            f"{speed['transformers']:.1f}",
            f"{row['ratio']:.2f}×",
            *_bound_cells(row),
        )
    return shown


def _bound_cells(row: dict) -> tuple[str, str]:
    if "fraction_of_bound" not in row:
        return "", ""
    bandwidth = row["read_bandwidth_bytes_per_s"] / 1e9
    return f"{bandwidth:.0f}", f"{row['fraction_of_bound']['kvpipe']:.0%}"


def memory_table(rows: list[dict]) -> Table:
    """Seconds to load and most bytes resident, each from a fresh process."""
    columns = ("load s", "and first token s", "decode MB", "prefill MB")
    shown = table("Load time and peak memory, each in a fresh process", 2, columns)
    for row in rows:
        shown.add_row(
            row["name"],
            row["dtype"],
            f"{row['load_s']:.2f}",
            f"{row['load_and_first_token_s']:.2f}",
            megabytes(row["decode_peak_bytes"]),
            megabytes(row["prefill_peak_bytes"]),
        )
    return shown


if __name__ == "__main__":
    name, folder, dtype, *quick = sys.argv[1:]
    print(json.dumps(alone(name, Path(folder), dtype, bool(quick))))
