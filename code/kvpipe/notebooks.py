"""Executes notebooks in place, so that their committed outputs are true and stable.

`python -m kvpipe.notebooks` runs every chapter from a fresh kernel and saves what a reader sees:
no widget state, no timestamps, nothing of the machine it ran on.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def execute(path: Path, timeout_s: int = 600) -> float:
    """Run a notebook in its own folder and save it in place; returns the seconds it took.

    A cell that fails raises `nbclient.exceptions.CellExecutionError` and leaves the file as it was.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=timeout_s,
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    elapsed_s = time.perf_counter() - started
    nbformat.write(clean(notebook), path)
    return elapsed_s


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove what would differ on another machine or refer to a kernel that is gone."""
    notebook.metadata = nbformat.from_dict({"kernelspec": _KERNEL})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key == "tags"}
        )
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)
    return notebook


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m kvpipe.notebooks [PATH …]`: execute, save in place, print the seconds."""
    parser = argparse.ArgumentParser(prog="python -m kvpipe.notebooks", description=main.__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all chapters by default")
    paths = parser.parse_args(arguments).paths or sorted(Path("notebooks").glob("*.ipynb"))
    if not paths:
        print("no notebooks/*.ipynb here: run in the root of the repository", file=sys.stderr)
        return 2
    for path in paths:
        print(f"{path}: {execute(path):.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
