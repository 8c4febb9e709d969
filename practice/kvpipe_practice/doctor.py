"""Is this machine ready? Every check says what it found and, where needed, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .hosts import HostError, make_host
from .limits import limits
from .problems import Problem
from .runner import Process
from .terminal import marks, shows_unicode

if TYPE_CHECKING:
    from .commands import Context

OLDEST_PYTHON = (3, 10)
INSTALL = "python -m pip install -r requirements.txt"
ANSWER = "def answer():\n    return 1\n"


@dataclass(frozen=True)
class Check:
    """One finding: `pass`, `skip` for something only some problems need, or `fail`."""

    status: str
    name: str
    found: str
    advice: str = ""


def doctor(context: Context) -> int:
    """Print every check; the exit code is 0 if exercises can be judged here."""
    signs, bad = marks(context.console), 0
    for check in checks(context):
        context.say((f"{signs[check.status]} {check.name}", check.status), f": {check.found}")
        if check.advice:
            context.say(f"  {signs['insight']} {check.advice}")
        bad += check.status == "fail"
    context.say("" if bad else "Ready.")
    return 1 if bad else 0


def checks(context: Context) -> Iterator[Check]:
    yield python_version()
    for name in ("rich", "watchfiles", "pylatexenc", "numpy"):
        yield package(name, "fail", INSTALL)
    torch = package("torch", "skip", f"problems with tensors need it: {INSTALL}")
    yield torch
    yield package("ipywidgets", "skip", f"the panel in notebooks needs it: {INSTALL}")
    yield folder(context)
    problems = context.problems()
    yield Check("pass" if problems else "fail", "problems", f"{len(problems)} found")
    for with_torch in (False, True) if torch.status == "pass" else (False,):
        chosen = [problem for problem in problems if problem.torch == with_torch]
        if chosen:
            yield answer_process(chosen[0], with_torch)
    yield model()
    yield terminal(context)


def python_version() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    found = f"{version} at {sys.executable}"
    if sys.version_info >= OLDEST_PYTHON:
        return Check("pass", "Python", found)
    return Check("fail", "Python", found, "use Python 3.10 or newer")


def package(name: str, missing: str, advice: str) -> Check:
    try:
        return Check("pass", name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(missing, name, "not installed", advice)


def folder(context: Context) -> Check:
    """Can answers be written?"""
    path = context.work.folder
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        return Check("fail", "your folder", str(error), "make it writable, or use --my DIR")
    count = len(list(path.glob("*.py")))
    return Check("pass", "your folder", f"{path}, {count} answers")


def answer_process(problem: Problem, with_torch: bool) -> Check:
    """Start a process as for an answer, and ask which walls stand around it."""
    name = "answers with torch" if with_torch else "answers in plain Python"
    started = time.perf_counter()
    try:
        host = make_host(with_torch)
        try:
            process = Process(host)
            request = {
                "op": "load",
                "source": ANSWER,
                "filename": "answer.py",
                "function": "answer",
                "forbidden": [],
                "required": [],
                "limits": limits(problem, process.folder, 1),
            }
            outcome = process.exchange(request, b"", 60)
            process.end()
        finally:
            host.close()
    except (HostError, OSError) as error:
        return Check("fail", name, str(error), "see the message; a new virtual environment helps")
    if outcome.kind != "loaded":
        found = f"{outcome.kind} {outcome.header.get('message', '')}"
        return Check("fail", name, found, f"reinstall: {INSTALL}")
    seconds = time.perf_counter() - started
    walls = ", ".join(str(wall) for wall in outcome.header.get("walls", []))
    return Check("pass", name, f"first start {seconds:.1f} s; walls: {walls}")


def model() -> Check:
    """The real model is needed by the notebooks, not by the exercises."""
    try:
        from kvpipe.checkpoints import home
        from kvpipe.default_model import FOLDER
    except ImportError as error:
        return Check("skip", "model", f"kvpipe is not complete ({error})", INSTALL)
    folder = home() / FOLDER
    if folder.is_dir():
        return Check("pass", "model", str(folder))
    fetch = 'python -c "from kvpipe.checkpoints import fetch; fetch()"'
    return Check(
        "skip", "model", "not fetched yet; only notebooks need it", f"98 MB, once: {fetch}"
    )


def terminal(context: Context) -> Check:
    encoding = getattr(sys.stdout, "encoding", "unknown")
    signs = "all signs" if shows_unicode(sys.stdout) else "plain ASCII signs"
    colour = "no colour (NO_COLOR is set)" if os.environ.get("NO_COLOR") else "colour if supported"
    found = f"{context.console.width} columns, {encoding}, {signs}, {colour}"
    return Check("pass", "terminal", found)
