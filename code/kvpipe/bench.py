"""Measures what the chapters built, beside what there is otherwise. Support module.

`python -m kvpipe.bench` (or `make bench`) runs every part, prints tables and writes one JSON file;
`python -m kvpipe.bench pipeline` runs one part. What is compared takes turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from kvpipe import bench_model, bench_pipeline, measure
from kvpipe.bench_part import Settings
from kvpipe.checkpoints import DEFAULT, fetch

PARTS = {"model": bench_model, "pipeline": bench_pipeline}  # a module each, see `bench_part`


def run(parts: list[str], settings: Settings) -> dict:
    """The numbers of all `parts`, and what they depend on, as plain data."""
    about = {
        "machine": measure.machine(),
        "checkpoint": settings.folder.name,
        "quick": settings.quick,
        "repeats": settings.repeats,
    }
    return about | {"parts": {name: PARTS[name].numbers(settings) for name in parts}}


def show(report: dict, console: Console) -> None:
    """Print the machine, then the tables of every part in the report."""
    machine = report["machine"]
    console.print(
        f"{report['checkpoint']} on {machine['processor']} ({machine['instructions']}), "
        f"{machine['threads']} threads; torch {machine['torch']}, "
        f"transformers {machine['transformers']}; medians of {report['repeats']} rounds"
    )
    for name, found in report["parts"].items():
        for table in PARTS[name].tables(found):
            console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m kvpipe.bench", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    add("--model", default=DEFAULT, help="default model's name, a folder or a hub name")
    add("--dtype", choices=bench_model.DTYPES, help="one number format only (default: all)")
    add("--repeats", type=int, help="rounds of each comparison (default 7, quick 2)")
    add("--quick", action="store_true", help="short prompts, few rounds, float32: about a minute")
    add("--json", type=Path, default=Path("_build/bench.json"), help="where the numbers go")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    all_dtypes = ("float32",) if options.quick else tuple(bench_model.DTYPES)
    settings = Settings(
        folder=fetch(options.model),
        quick=options.quick,
        rounds=options.repeats,
        dtypes=(options.dtype,) if options.dtype else all_dtypes,
    )
    report = run(options.parts or list(PARTS), settings)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show(report, Console())
    print(f"Numbers: {options.json}")


if __name__ == "__main__":
    main()
