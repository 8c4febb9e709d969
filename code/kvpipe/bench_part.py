"""What every part of the benchmark is given, and the look of its tables. Support module.

A part is a module with two functions: `numbers(settings)`, whose result is plain data for the
JSON file, and `tables(found)`, which shows that data. `kvpipe.bench` knows the parts by name.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Settings:
    """How long to measure, and on what."""

    folder: Path  # of the checkpoint
    quick: bool = False  # short prompts, few rounds
    rounds: int | None = None  # of each comparison; None: as many as the part thinks right
    dtypes: tuple[str, ...] = ("float32",)  # for the parts that compare number formats
    console: Console = field(default_factory=lambda: Console(stderr=True))  # says what goes on

    @property
    def repeats(self) -> int:
        return self.rounds or (2 if self.quick else 7)


def table(title: str, n_left: int, columns: Sequence[str], caption: str = "") -> Table:
    """An empty table: `n_left` columns of words, then numbers; narrow enough for 80 characters."""
    look = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "title_justify": "left"}
    empty = Table(*[""] * n_left, title=title, caption=caption or None, **look)
    for name in columns:
        empty.add_column(name, justify="right")
    return empty


def medians(samples: dict[str, list[float]]) -> dict[str, float]:
    """The median of each list."""
    return {name: statistics.median(values) for name, values in samples.items()}


def megabytes(n_bytes: int | None) -> str:
    return "not measured" if n_bytes is None else f"{n_bytes / 1e6:.0f}"
