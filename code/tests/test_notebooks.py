"""Every chapter runs as committed, and keeps the rules that make chapters readable.

nbval runs a notebook and compares each output with the committed one. It passes a stripped
notebook without comparing anything, and knows no budget; `faults` names what it cannot see. Each
rule is broken on purpose below, so that a rule which has stopped working is noticed.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_rules import ROOT, SECTIONS, code_cells, faults

CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TIME_LIMIT_S = 480  # the budget is 120 s on two quiet cores; this one leaves room for busy ones


def run_nbval(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook in a fresh kernel and compare every output with the stored one."""
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-cell-timeout=240"]
    alone = ["-p", "no:cacheprovider", "-p", "no:timeout", "-c", os.devnull]
    return subprocess.run(
        [*command, *alone, f"--rootdir={folder}", str(path)],
        cwd=folder, capture_output=True, text=True, timeout=TIME_LIMIT_S,
    )  # fmt: skip


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_keeps_every_rule(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert faults(notebook) == []


@pytest.mark.model
@pytest.mark.timeout(TIME_LIMIT_S + 20)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_runs_and_gives_its_committed_outputs(path):
    run = run_nbval(path, path.parent)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


@pytest.fixture
def good() -> nbformat.NotebookNode:
    """A small notebook that keeps every rule."""
    cells = [new_markdown_cell("# Title\n\n" + "word " * 1600)]
    cells += [new_markdown_cell(f"## {section}") for section in SECTIONS]
    for number in range(1, 29):
        printed = new_output("stream", name="stdout", text=f"{number}\n")
        cells.append(new_code_cell(f"print({number})", execution_count=number, outputs=[printed]))
    notebook = new_notebook(cells=cells)
    assert faults(notebook) == []
    return notebook


def _displayed(html: str) -> list[nbformat.NotebookNode]:
    return [new_output("display_data", data={"text/html": html})]


def _set(number: int, **values: object):
    """A breakage that changes fields of one code cell."""
    return lambda notebook: code_cells(notebook)[number - 1].update(values)


def _printed(text: str, name: str = "stdout"):
    return _set(3, outputs=[new_output("stream", name=name, text=text)])


def _swap(notebook):
    first, second = code_cells(notebook)[:2]
    first.execution_count, second.execution_count = 2, 1


def _strip(notebook):
    for cell in code_cells(notebook):
        cell.execution_count, cell.outputs = None, []


def _prepend(text: str):
    def breakage(notebook):
        notebook.cells[0].source = text + notebook.cells[0].source

    return breakage


def _retitle(old: str, new: str):
    def breakage(notebook):
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)

    return breakage


def _move_references_first(notebook):
    place = 1 + SECTIONS.index("References")
    notebook.cells.insert(1, notebook.cells.pop(place))


LONG = "\n".join(f"x{i} = {i}" for i in range(26))
ERROR = new_output("error", ename="ValueError", evalue="no", traceback=["no"])
PICTURE = new_output("display_data", data={"image/png": "iVBOR"})
VIEW = new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}})
BREAKAGES = {
    "stripped": (_strip, "stripped: cell 1 has no execution count"),
    "one cell not run": (_set(5, execution_count=None), "stripped: cell 5"),
    "outputs stripped, counts kept": (_set(4, outputs=[]), "code cell 4 shows something"),
    "figure without output": (_set(4, outputs=[], source="plots.figure(1)"), "code cell 4 shows"),
    "out of order": (_swap, "out of order"),
    "run twice": (_set(28, execution_count=29), "out of order"),
    "an error": (_set(6, outputs=[ERROR]), "code cell 6 ends with ValueError"),
    "a warning": (_printed("UserWarning: old", name="stderr"), "stderr: code cell 3"),
    "a dead widget": (_set(2, outputs=[VIEW]), "widget: code cell 2"),
    "a bitmap": (_set(2, outputs=[PICTURE]), "image: code cell 2"),
    "no alt text": (
        _set(2, outputs=_displayed("<svg><figcaption>x</figcaption></svg>")),
        "figure: code cell 2",
    ),
    "no caption": (
        _set(2, outputs=_displayed('<svg aria-label="x"></svg>')),
        "figure: code cell 2",
    ),
    "absolute path in code": (_set(2, source="print(open('/home/ada/x'))"), "absolute path"),
    "absolute path in output": (_printed("saved in /tmp/run/7"), "absolute path"),
    "Windows path": (_printed("C:\\Users\\ada"), "absolute path"),
    "host in printed text": (_printed("see https://files.example.org/x"), "files.example.org"),
    "host in a figure": (
        _set(2, outputs=_displayed('<img src="http://cdn.example.net/a.js">')),
        "cdn.example.net",
    ),
    "pip": (_set(2, source="!pip install x"), "magic"),
    "shell magic": (_set(2, source="x = 1\n%timeit x\nprint(x)"), "magic"),
    "network": (_set(2, source="import urllib.request\nprint(1)"), "network"),
    "too few cells": (lambda n: n.update(cells=n.cells[:-4]), "24 code cells"),
    "too many cells": (
        lambda n: n.cells.extend(new_code_cell("x = 1", execution_count=i) for i in range(29, 47)),
        "46 code cells",
    ),
    "a long cell": (_set(2, source=LONG + "\nprint(1)"), "code cell 2 has 27 lines"),
    "long cells": (
        lambda n: [c.update(source="x = 1\n" * 7 + c.source) for c in code_cells(n)],
        "the median cell has 8",
    ),
    "a wide cell": (_set(2, source=f"print('{'x' * 80}')"), "89 columns"),
    "an unknown tag": (_set(2, metadata={"tags": ["nbval-skip"]}), "tags: code cell 2"),
    "a heavy notebook": (_printed("x" * 1_000_000), "the limit is 1,000,000"),
    "few words": (lambda n: n.cells[0].update(source="# Title"), "words, not 1,500"),
    "many words": (lambda n: n.cells[0].update(source="# Title\n\n" + "w " * 3500), "words, not"),
    "words hidden in code": (
        lambda n: n.cells[0].update(source="# Title\n\n```text\n" + "w " * 1600 + "\n```"),
        "words, not 1,500",
    ),
    "two titles": (_prepend("# Another\n\n"), "one title"),
    "a title that comes late": (_prepend("## Early\n\n"), "one title"),
    "a skipped level": (_retitle("## Summary", "## Summary\n\n#### Deep"), "'Deep' skips a level"),
    "a missing section": (_retitle("## Exercises", "## Puzzles"), "no section 'Exercises'"),
    "sections in another order": (_move_references_first, "another order"),
    "a copy of a module's function": (
        _set(2, source="def attention(q):\n    return q\n\n\nprint(1)"),
        "redefines the module's attention",
    ),
    "a copy as a lambda": (_set(2, source="rotate = lambda x: x\nprint(1)"), "module's rotate"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_rule_is_noticed(good, name):
    breakage, expected = BREAKAGES[name]
    broken = copy.deepcopy(good)
    breakage(broken)
    found = faults(broken)
    assert any(expected in fault for fault in found), found


@pytest.mark.parametrize(
    ("source", "stored", "is_true"),
    [
        ("print(1 + 1)", "2\n", True),
        ("print(1 + 1)", "3\n", False),
        ("print(1 + 1)\nassert 1 > 2", "2\n", False),
    ],
    ids=["a true output", "a false output", "an assertion that fails"],
)
def test_the_runner_tells_true_outputs_from_false_ones(tmp_path, source, stored, is_true):
    printed = new_output("stream", name="stdout", text=stored)
    cell = new_code_cell(source, execution_count=1, outputs=[printed])
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = tmp_path / "small.ipynb"
    nbformat.write(new_notebook(cells=[cell], metadata={"kernelspec": kernel}), path)
    assert (run_nbval(path, tmp_path).returncode == 0) == is_true


def test_every_chapter_has_a_notebook_here():
    assert CHAPTERS, "no notebooks/*.ipynb were found, so nothing above was tested"
