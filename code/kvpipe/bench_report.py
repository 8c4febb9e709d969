"""The tables of `kvpipe.bench`: the report's data in, text on a terminal out. Support module."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


def show(report: dict, console: Console) -> None:
    """Print the machine, the speed table and the memory table."""
    machine = report["machine"]
    console.print(
        f"{report['model']} on {machine['processor']} ({machine['instructions']}), "
        f"{machine['threads']} threads; torch {machine['torch']}, "
        f"transformers {machine['transformers']}; medians of {report['repeats']} rounds"
    )
    console.print(speed_table(report["speed"]))
    console.print(memory_table(report["memory"]))


def speed_table(rows: list[dict]) -> Table:
    """Tokens per second of both, their ratio, and how close a decode step comes to the bound."""
    table = _table("Tokens per second", 2)
    for name in ("rows", "context", "kvpipe", "transformers", "ratio", "GB/s", "bound"):
        table.add_column(name, justify="right")
    for row in rows:
        speed = row["tokens_per_s"]
        table.add_row(
            row["name"],
            row["dtype"],
            str(row["batch"]),
            str(row["context_tokens"]),
            f"{speed['kvpipe']:.1f}",
            f"{speed['transformers']:.1f}",
            f"{row['ratio']:.2f}×",
            *_bound_cells(row),
        )
    table.caption = (
        "GB/s: summing one large buffer, in turns with the runs. Bound: kvpipe's speed ÷ the "
        "speed at which reading the weights and the cache once per step would be all the work."
    )
    return table


def _bound_cells(row: dict) -> tuple[str, str]:
    if "fraction_of_bound" not in row:
        return "", ""
    bandwidth = row["read_bandwidth_bytes_per_s"] / 1e9
    return f"{bandwidth:.0f}", f"{row['fraction_of_bound']['kvpipe']:.0%}"


def memory_table(rows: list[dict]) -> Table:
    """Seconds to load and most bytes resident, each from a fresh process."""
    table = _table("Load time and peak memory, each in a fresh process", 2)
    for name in ("load s", "and first token s", "decode MB", "prefill MB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            row["dtype"],
            f"{row['load_s']:.2f}",
            f"{row['load_and_first_token_s']:.2f}",
            _megabytes(row["decode_peak_bytes"]),
            _megabytes(row["prefill_peak_bytes"]),
        )
    return table


def _table(title: str, n_left: int) -> Table:
    """An empty table whose first columns hold words, narrow enough for 80 characters."""
    look = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "title_justify": "left"}
    return Table(*[""] * n_left, title=title, **look)


def _megabytes(n_bytes: int | None) -> str:
    return "not measured" if n_bytes is None else f"{n_bytes / 1e6:.0f}"
