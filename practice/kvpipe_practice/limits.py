"""What an answer's process is told about its limits: the judge's side of `confine`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from .problems import PRACTICE, Problem

CPU_SPARE_S = 30


def limits(problem: Problem, folder: str, n_cases: int) -> dict:
    """Memory, processor time, and which paths are out of reach."""
    return {
        "folder": folder,
        "memory_bytes": problem.memory_bytes,
        "cpu_s": int(problem.limit_s * (n_cases + 1)) + CPU_SPARE_S,
        "protected": protected_paths(problem),
        "unimportable": [os.path.realpath(path) for path in (PRACTICE, PRACTICE.parent / "code")],
    }


def protected_paths(problem: Problem) -> list[str]:
    """Where solutions, cases, the judge and the book's modules lie, the repository's history too.

    Everything beside this package is closed but the learner's own folder and what holds the
    interpreter's libraries (a virtual environment is often inside the repository).
    """
    closed = [path for path in PRACTICE.iterdir() if path.name != "my"]
    if (PRACTICE.parent / "code" / "kvpipe").is_dir():
        closed += [path for path in PRACTICE.parent.iterdir() if path != PRACTICE]
    closed += [problem.folder, Path(__file__).parent]
    if (spec := importlib.util.find_spec("kvpipe")) and spec.submodule_search_locations:
        closed += map(Path, spec.submodule_search_locations)
    real = {os.path.realpath(path) for path in closed}
    own_code = [os.path.realpath(path) for path in (PRACTICE, PRACTICE.parent / "code")]
    found = [os.path.realpath(path) for path in (sys.prefix, *sys.path) if path]
    libraries = [path for path in found if not any(holds(own, path) for own in own_code)]
    return sorted(p for p in real if not any(holds(p, library) for library in libraries))


def holds(folder: str, path: str) -> bool:
    """Is the path this folder, or inside it?"""
    return path == folder or path.startswith(folder + os.sep)
