"""Problems on disk: one folder per slug, read without importing what needs torch."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .case import Case, Tolerance

PRACTICE = Path(__file__).resolve().parent.parent
PROBLEMS = PRACTICE / "problems"
DIFFICULTIES = ("easy", "medium", "hard")
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
REQUIRED_KEYS = ("title", "chapter", "order", "difficulty", "minutes", "function", "section")


class ProblemError(ValueError):
    """A problem folder that is not as the format says, or a slug that does not exist."""


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: what it believes, and how the judge must reject it."""

    path: Path
    misconception: str
    message: str
    case: str
    kind: str

    @property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Problem:
    """One problem: its metadata, and its files read when they are asked for."""

    slug: str
    folder: Path
    title: str
    chapter: int
    order: int
    difficulty: str
    minutes: int
    function: str
    section: str
    torch: bool = True
    limit_s: float = 10.0
    memory_bytes: int = field(default=2 * 2**30)

    @property
    def file_name(self) -> str:
        """The learner's file: the slug as an importable name."""
        return self.slug.replace("-", "_") + ".py"

    @property
    def statement(self) -> str:
        return split_front_matter(self._text("problem.md"), self.folder)[1].strip() + "\n"

    @property
    def stub(self) -> str:
        return self._text("stub.py")

    @property
    def solution(self) -> str:
        return self._text("solution.py")

    @property
    def hints(self) -> list[tuple[str, str]]:
        """(title, body) of each `## ` section of hints.md."""
        parts = re.split(r"^## +(.+)$", self._text("hints.md"), flags=re.MULTILINE)[1:]
        return [
            (title.strip(), body.strip())
            for title, body in zip(parts[::2], parts[1::2], strict=True)
        ]

    @property
    def wrong(self) -> list[Wrong]:
        return [read_wrong(path) for path in sorted((self.folder / "wrong").glob("*.py"))]

    @cached_property
    def module(self) -> ModuleType:
        """cases.py, imported: author's code, trusted, run in the judge's process only."""
        return load_module(self.folder / "cases.py", f"kvpipe_practice_cases_{self.slug}")

    @property
    def forbidden(self) -> tuple[str, ...]:
        return tuple(getattr(self.module, "FORBIDDEN", ()))

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(getattr(self.module, "REQUIRED", ()))

    @property
    def result_names(self) -> tuple[str, ...]:
        """What the statement calls the parts of a result, if it has several."""
        return tuple(getattr(self.module, "RESULT", ()))

    def cases(self, seed: int) -> list[Case]:
        """Every case, in order; the random ones are drawn from the seed."""
        cases = list(self.module.cases(seed))
        names = [case.name for case in cases]
        if len(set(names)) < len(names):
            raise ProblemError(f"{self.slug}: two cases have the same name: {names}")
        return cases

    def tolerance(self, case: Case) -> Tolerance | None:
        return case.tolerance or getattr(self.module, "TOLERANCE", None)

    def _text(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ProblemError(f"{self.slug}: {name} is missing from {self.folder}") from None


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch, if it is there, to one thread: cases are small, and waiting threads cost more."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(before)


def load_module(path: Path, name: str) -> ModuleType:
    """Import one file under a private name, without touching sys.modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ProblemError(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=256)
def wrong_function(wrong: Wrong, function: str) -> Callable[..., Any]:
    """The wrong answer's function, to recognise its result in a learner's."""
    return getattr(load_module(wrong.path, f"kvpipe_practice_wrong_{wrong.path.stem}"), function)


def split_front_matter(text: str, where: Path) -> tuple[dict[str, str], str]:
    """The `key: value` lines between two `---` lines, and the text after them."""
    match = re.match(r"---\n(.*?)\n---\n(.*)", text, flags=re.DOTALL)
    if match is None:
        raise ProblemError(f"{where}/problem.md does not start with a front matter between ---")
    pairs = [line.partition(":") for line in match[1].splitlines() if line.strip()]
    return {key.strip(): value.strip().strip('"') for key, _, value in pairs}, match[2]


def read_wrong(path: Path) -> Wrong:
    """The header of a wrong answer: `Misconception: message`, then `case:` and `kind:` lines."""
    text = path.read_text(encoding="utf-8")
    match = re.match(
        r'r?"""(?P<what>[^:\n]+): (?P<message>.+?)\n\ncase: *(?P<case>\S+)\nkind: *(?P<kind>\S+)\n',
        text,
        flags=re.DOTALL,
    )
    if match is None:
        raise ProblemError(
            f'{path} must start with """Misconception: message, then a line "case: NAME" '
            'and a line "kind: KIND"'
        )
    found = {key: " ".join(value.split()) for key, value in match.groupdict().items()}
    return Wrong(path, found["what"], found["message"], found["case"], found["kind"])


def load_problem(folder: Path) -> Problem:
    """Read one problem's metadata."""
    path = folder / "problem.md"
    if not path.exists():
        raise ProblemError(f"{folder} has no problem.md")
    meta, _ = split_front_matter(path.read_text(encoding="utf-8"), folder)
    missing = [key for key in REQUIRED_KEYS if key not in meta]
    if missing:
        raise ProblemError(f"{path}: the front matter lacks {', '.join(missing)}")
    if meta["difficulty"] not in DIFFICULTIES:
        raise ProblemError(
            f"{path}: difficulty is {meta['difficulty']!r}, not one of {', '.join(DIFFICULTIES)}"
        )
    return Problem(
        slug=folder.name,
        folder=folder,
        title=meta["title"],
        chapter=int(meta["chapter"]),
        order=int(meta["order"]),
        difficulty=meta["difficulty"],
        minutes=int(meta["minutes"]),
        function=meta["function"],
        section=meta["section"],
        torch=meta.get("torch", "true") == "true",
        limit_s=float(meta.get("limit_s", 10)),
        memory_bytes=int(float(meta.get("memory_gib", 2)) * 2**30),
    )


def load_all(root: Path = PROBLEMS) -> list[Problem]:
    """Every problem, by chapter and then by order."""
    folders = [path for path in root.iterdir() if (path / "problem.md").exists()]
    return sorted(map(load_problem, folders), key=lambda p: (p.chapter, p.order, p.slug))


def find(slug: str, root: Path = PROBLEMS) -> Problem:
    """The problem of a slug; underscores, a path and a `.py` are forgiven."""
    wanted = Path(slug).name.removesuffix(".py").replace("_", "-").lower()
    if SLUG.fullmatch(wanted) and (root / wanted / "problem.md").exists():
        return load_problem(root / wanted)
    from difflib import get_close_matches

    known = [problem.slug for problem in load_all(root)]
    close = get_close_matches(wanted, known, n=1, cutoff=0.4)
    guess = f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(known)}"
    raise ProblemError(f"there is no problem {slug!r}{guess}")
