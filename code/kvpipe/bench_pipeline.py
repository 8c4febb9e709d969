"""The benchmark of chapter 2: decoding over processes, the simulator, and two training engines.

Two processes with one thread each. What they could do at best is predicted from the stage times of
a run with one batch; what they do is compared with one process.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from rich.table import Table

from kvpipe import comm
from kvpipe.bench_part import Settings, medians, table
from kvpipe.config import Config
from kvpipe.pipeline import Comm, Timeline, build, round_robin, simulate
from kvpipe.pipeline.batching import Request
from kvpipe.pipeline.bench import SMALL, DecodeRates, decode_rates, engine_steps
from kvpipe.pipeline.measured import measured_cost, measured_timeline

N_RANKS, IN_FLIGHT = 2, (1, 2, 4)
SIMULATED_RANKS, SIMULATED_MICROBATCHES = 64, 512
SIMULATED = ("gpipe", "1f1b", "zb-h1")
TIMEOUT_S = 600.0  # of a launch


@dataclass(frozen=True)
class Sizes:
    """What is decoded, and which schedules train."""

    prompt_tokens: int
    new_tokens: int
    threads_alone: tuple[int, ...]  # of the single process that the two are compared with
    schedules: tuple[str, ...]
    train_rows: int = 4  # one per micro-batch
    train_tokens: int = 16  # of each row


FULL = Sizes(64, 32, (1, N_RANKS), ("gpipe", "1f1b", "zb-h1"))
QUICK = Sizes(16, 8, (1,), ("1f1b",))


def numbers(settings: Settings) -> dict:
    """All three: {"decode": rows, "simulator": rows, "engines": rows}."""
    sizes, say = QUICK if settings.quick else FULL, settings.console.status
    with say("decoding over two processes ..."):
        decoding = decode_rows(settings, sizes)
    with say("the simulator ..."):
        simulating = simulator_rows(1 if settings.quick else 3)
    with say("training steps of two engines ..."):
        training = engine_rows(settings, sizes)
    return {"decode": decoding, "simulator": simulating, "engines": training}


def decode_rows(settings: Settings, sizes: Sizes) -> list[dict]:
    """Tokens per second of one process and of two, with 1, 2 and 4 batches in flight."""
    vocabulary = Config.from_hf(settings.folder).vocab_size
    ids = random_tokens(vocabulary, max(IN_FLIGHT), sizes.prompt_tokens).tolist()
    batches = [[Request(tuple(prompt), sizes.new_tokens)] for prompt in ids]
    arguments = (settings.folder, batches, IN_FLIGHT, sizes.threads_alone, settings.repeats)
    ranks = comm.launch(decode_rates, N_RANKS, *arguments, threads=1, timeout_s=TIMEOUT_S)
    return rows_of(ranks, sizes.new_tokens)


def rows_of(ranks: list[DecodeRates], n_new: int) -> list[dict]:
    """The reports of all ranks as rows: measured rates beside those that stage times promise.

    The promise is the simulator's, with each operation's median time in the run with one batch
    and the measured time of a message; for one process, the same operations without messages.
    """
    first = ranks[0]
    together = {n: timelines([rank.together[n] for rank in ranks], n, n_new) for n in IN_FLIGHT}
    cost, link = measured_cost(together[1]), Comm(latency=first.link_s)
    stage_s = sum(cost(op) for order in round_robin(N_RANKS, 1, n_new).order for op in order)
    rows = []
    for threads, reports in first.alone.items():
        seconds = [timeline.makespan for timeline in timelines([reports], 1, n_new)]
        ideal = n_new / stage_s if threads == 1 else None
        rows.append(_row(1, threads, 1, n_new, seconds, ideal))
    expected = first.alone[1][0].tokens[0]
    for n, runs in together.items():
        ideal = n * n_new / simulate(round_robin(N_RANKS, n, n_new), cost, link).makespan
        row = _row(N_RANKS, 1, n, n_new, [run.makespan for run in runs], ideal)
        row["same_tokens"] = all(done.tokens[0] == expected for done in first.together[n])
        rows.append(row)
    return [row | {"speedup": row["tokens_per_s"] / rows[0]["tokens_per_s"]} for row in rows]


def timelines(reports: list[list], n_in_flight: int, n_new: int) -> list[Timeline]:
    """Rank -> rounds of reports, as one timeline per round."""
    schedule = round_robin(len(reports), n_in_flight, n_new)
    return [measured_timeline(schedule, each) for each in zip(*reports, strict=True)]


def _row(
    processes: int, threads: int, n: int, n_new: int, seconds: list[float], ideal: float | None
) -> dict:
    return {
        "processes": processes,
        "threads": threads,
        "in_flight": n,
        "new_tokens": n_new,
        "samples_s": seconds,
        "tokens_per_s": n * n_new / statistics.median(seconds),
        "ideal_tokens_per_s": ideal,
    }


def simulator_rows(repeats: int) -> list[dict]:
    """Seconds to build and to simulate large schedules, the fastest of `repeats`."""
    rows = []
    for name in SIMULATED:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            schedule = build(name, SIMULATED_RANKS, SIMULATED_MICROBATCHES)
            built = time.perf_counter()
            simulate(schedule)
            times.append((built - start, time.perf_counter() - built))
        rows.append({
            "schedule": name,
            "ranks": SIMULATED_RANKS,
            "microbatches": SIMULATED_MICROBATCHES,
            "operations": sum(map(len, schedule.order)),
            "build_s": min(build_s for build_s, _ in times),
            "simulate_s": min(simulate_s for _, simulate_s in times),
        })  # fmt: skip
    return rows


def engine_rows(settings: Settings, sizes: Sizes) -> list[dict]:
    """Training steps under our runtime and under torch's: of the model, and of a very small one.

    The small one shows what an engine itself costs.
    """
    schedules = {name: build(name, N_RANKS, sizes.train_rows) for name in sizes.schedules}
    tokens = random_tokens(SMALL.vocab_size, sizes.train_rows, sizes.train_tokens)
    arguments = (settings.folder, schedules, tokens, settings.repeats)
    ranks = comm.launch(engine_steps, N_RANKS, *arguments, threads=1, timeout_s=TIMEOUT_S)
    return [
        {"model": model, "schedule": name} | engine_row([rank[model, name] for rank in ranks])
        for model, name in ranks[0]
    ]


def engine_row(ranks: list[dict[str, list[float]]]) -> dict:
    """A step takes as long as the slowest rank; of steps, the median."""
    samples_s = {
        engine: [max(step) for step in zip(*(rank[engine] for rank in ranks), strict=True)]
        for engine in ranks[0]
    }
    step_s = medians(samples_s)
    return {"step_s": step_s, "ratio": step_s["torch"] / step_s["kvpipe"], "samples_s": samples_s}


def random_tokens(vocabulary: int, rows: int, n: int) -> torch.Tensor:
    """(rows, n) token ids; how fast a model is does not depend on which."""
    return torch.randint(vocabulary, (rows, n), generator=torch.Generator().manual_seed(0))


def tables(found: dict) -> list[Table]:
    """What `numbers` found, for a terminal."""
    return [
        decode_table(found["decode"]),
        simulator_table(found["simulator"]),
        engine_table(found["engines"]),
    ]


def decode_table(rows: list[dict]) -> Table:
    caption = (
        "Ideal: simulated with the stage times of two processes and one batch, in which nobody "
        "shares the memory's bandwidth. Speed-up: over one process with one thread."
    )
    columns = ("threads each", "in flight", "tokens/s", "ideal", "of ideal", "speed-up")
    shown = table("Decoding over processes", 1, columns, caption)
    for row in rows:
        ideal = row["ideal_tokens_per_s"]
        shown.add_row(
            f"{row['processes']} process" + ("es" if row["processes"] > 1 else ""),
            str(row["threads"]),
            str(row["in_flight"]),
            f"{row['tokens_per_s']:.1f}",
            *(
                ("", "")
                if ideal is None
                else (f"{ideal:.1f}", f"{row['tokens_per_s'] / ideal:.0%}")
            ),
            f"{row['speedup']:.2f}×",
        )
    return shown


def simulator_table(rows: list[dict]) -> Table:
    columns = ("ranks", "micro-batches", "operations", "build s", "simulate s")
    shown = table("The simulator", 1, columns)
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("ranks", "microbatches", "operations")]
        shown.add_row(row["schedule"], *counts, f"{row['build_s']:.2f}", f"{row['simulate_s']:.2f}")
    return shown


def engine_table(rows: list[dict]) -> Table:
    caption = (
        "torch: torch.distributed.pipelining, same stages, in turns. "
        "Ratio: torch's time ÷ kvpipe's. The very small model shows what an engine itself costs."
    )
    columns = ("kvpipe ms", "torch ms", "ratio")
    shown = table("A training step on two processes", 2, columns, caption)
    for row in rows:
        step_ms = {engine: f"{1000 * seconds:.1f}" for engine, seconds in row["step_s"].items()}
        times = (step_ms["kvpipe"], step_ms["torch"], f"{row['ratio']:.2f}×")
        shown.add_row(row["model"], row["schedule"], *times)
    return shown
