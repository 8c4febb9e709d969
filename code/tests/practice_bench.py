"""A small problem with quick limits, and fixtures to judge answers to it, for the judge's tests."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from kvpipe_practice import cli, commands, judging, landlock
from kvpipe_practice.hosts import Host, make_host
from kvpipe_practice.judging import Submission
from kvpipe_practice.problems import Problem, load_problem
from kvpipe_practice.results import CaseResult, Report

PROBLEM_MD = """---
title: Softmax rows
chapter: 1
order: 1
difficulty: easy
minutes: 5
function: soft_rows
section: "Chapter 1"
torch: true
limit_s: 1
memory_gib: 0.5
---

# Softmax rows

Each row becomes positive and sums to one: $e^{x_i} / \\sum_j e^{x_j}$.

## Write

```python
def soft_rows(x: torch.Tensor) -> torch.Tensor:
```

## Example

`soft_rows(torch.zeros(1, 2))` is `[[0.5, 0.5]]`.

## Limits

1 second. Do not call `torch.softmax`.
"""

CASES = """
import torch
from kvpipe_practice.case import Case, Tolerance

FORBIDDEN = ("torch.softmax", "torch.Tensor.softmax", "torch.nn.functional.softmax",
             "torch.nn.Softmax")
TOLERANCE = Tolerance(1e-5, why="float32 keeps 7 digits")


def cases(seed):
    random = torch.Generator().manual_seed(seed)
    for name, shape in (("first", (2, 3)), ("second", (3, 4)), ("third", (4, 5))):
        x = torch.arange(shape[0] * shape[1]).reshape(shape) / 7 - 1
        yield Case(name, f"the {name} case", {"x": x}, torch.softmax(x.double(), -1).float())
    x = torch.randn(5, 6, generator=random)
    yield Case("random", "random values", {"x": x}, torch.softmax(x.double(), -1).float(),
               hidden=True)
"""

HONEST = """
import torch


def honest(x):
    e = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)
"""

SOLUTION = '''"""Subtract the largest of each row first.

The shares stay the same, and no exponential overflows.
"""
import torch


def soft_rows(x: torch.Tensor) -> torch.Tensor:
    e = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return e / e.sum(dim=-1, keepdim=True)
'''

HINTS = """## A question

What do the rows of the result sum to, and why?

## The idea

Exponentiate, then divide by the sum of the row.

## The crucial line

`e / e.sum(dim=-1, keepdim=True)` with e the exponentials
"""

STUB = '''"""Softmax rows."""
import torch


def soft_rows(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("write soft_rows here")
'''

WRONG = {
    "columns.py": (
        "Columns: your result equals the one normalised over columns.",
        "e = torch.exp(x)\n    return e / e.sum(dim=0, keepdim=True)",
    ),
    "no_exp.py": (
        "No exponential: your result equals the plain shares of the row.",
        "return x / x.sum(dim=-1, keepdim=True)",
    ),
    "log.py": (
        "Logarithm: your result equals the logarithm of the right one.",
        "return torch.log_softmax(x, -1)",
    ),
}


def make_problem(root: Path, slug: str = "soft-rows") -> Problem:
    """Write the problem's folder and load it."""
    folder = root / slug
    (folder / "wrong").mkdir(parents=True)
    files = {
        "problem.md": PROBLEM_MD,
        "cases.py": CASES,
        "solution.py": SOLUTION,
        "stub.py": STUB,
        "hints.md": HINTS,
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, (message, body) in WRONG.items():
        head = f'"""{message}\n\ncase: first\nkind: value\n"""\nimport torch\n\n\n'
        code = f"def soft_rows(x: torch.Tensor) -> torch.Tensor:\n    {body}\n"
        (folder / "wrong" / name).write_text(head + code, encoding="utf-8")
    return load_problem(folder)


def answer(attack: str, at_import: str = "", result: str = "honest(x)") -> str:
    """An answer that is right but in the second case, where it does something else."""
    body = textwrap.indent(textwrap.dedent(attack), " " * 8)
    return (
        f"{HONEST}\n{textwrap.dedent(at_import)}\n\n"
        f"def soft_rows(x):\n    if tuple(x.shape) == (3, 4):\n{body}\n    return {result}\n"
    )


def run(problem: Problem, host: Host, source: str, *, static: bool = False, **options) -> Report:
    """Judge with the source check off, so that the walls are tested and not the reading."""
    submission = Submission(source, "my/soft_rows.py")
    return judging.judge(problem, submission, host, static=static, **options)


def result_of(report: Report, name: str) -> CaseResult:
    return next(result for result in report.results if result.case.name == name)


def statuses(report: Report) -> list[str]:
    return [result.status for result in report.results]


linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel walls are Linux's")
walled = pytest.mark.skipif(landlock.version() < 6, reason="needs Landlock 6 (Linux 6.12)")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def problem(tmp_path_factory) -> Problem:
    return make_problem(tmp_path_factory.mktemp("problems"))


@pytest.fixture(scope="module")
def host():
    """A warm host for all tests of a module."""
    host = make_host(with_torch=True)
    yield host
    host.close()


@pytest.fixture
def attack(problem, host):
    """Judge an answer that misbehaves in the second case; the other cases must still pass."""

    def judge_it(body, at_import="", kind=None, others=("pass", "pass", "pass")):
        report = run(problem, host, answer(body, at_import))
        first, second, *rest = statuses(report)
        assert second == "fail", report
        assert (first, *rest) == others
        assert not report.accepted
        failure = result_of(report, "second").failure
        if kind is not None:
            assert failure.kind == kind, failure
        return failure

    return judge_it


def variant(folder, rules):
    """The same problem with other rules at the end of its cases.py."""
    problem = make_problem(folder)
    path = problem.folder / "cases.py"
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{rules}\n", encoding="utf-8")
    return problem


class Borrowed:
    """The module's warm host, which a command must not close."""

    def __init__(self, host):
        self.open, self.end, self.close = host.open, host.end, lambda: None


@pytest.fixture
def judge(problem, host, tmp_path, capsys, monkeypatch):
    """Run one command on the small problem; gives (exit code, output)."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(commands, "make_host", lambda *options: Borrowed(host))

    def call(*arguments):
        folders = ["--my", str(tmp_path / "my"), "--problems", str(problem.folder.parent)]
        code = cli.main([*folders, *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    call.file = tmp_path / "my" / "soft_rows.py"
    return call
