"""The learner's folder: answers, backups, and moving both to another machine."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .judging import Submission
from .problems import PRACTICE, Problem, ProblemError
from .progress import FILE_NAME, Progress, parse, write_atomically

MAX_ARCHIVE_FILES = 2000
MAX_FILE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Work:
    """The folder with the learner's answers; by default `practice/my`."""

    folder: Path = PRACTICE / "my"

    def judge_command(self) -> str:
        """How the judge is called from here for this folder."""
        folder = "" if self.folder == PRACTICE / "my" else f" --my {shorter(self.folder)}"
        return judge_command() + folder

    def path(self, problem: Problem) -> Path:
        return self.folder / problem.file_name

    def shown(self, problem: Problem) -> str:
        """The answer's path as it is shortest from here."""
        return shorter(self.path(problem))

    def start(self, problem: Problem) -> bool:
        """Copy the stub, unless there is work already; whether it was copied."""
        path = self.path(problem)
        if path.exists():
            return False
        write_atomically(path, problem.stub)
        return True

    def submission(self, problem: Problem, path: Path | None = None) -> Submission:
        """The answer as it is on disk."""
        path = path or self.path(problem)
        try:
            return Submission(path.read_text(encoding="utf-8-sig"), shorter(path))
        except FileNotFoundError:
            how = f"{self.judge_command()} start {problem.slug}"
            raise ProblemError(f"{shorter(path)} does not exist; run: {how}") from None
        except UnicodeDecodeError as error:
            raise ProblemError(f"{shorter(path)} is not UTF-8 text: {error}") from None

    def reset(self, problem: Problem) -> Path | None:
        """Put the stub back; the old answer becomes a dated backup."""
        backup = self.backup(problem)
        write_atomically(self.path(problem), problem.stub)
        return backup

    def backup(self, problem: Problem) -> Path | None:
        """Copy an answer to `backup/`; None if there is nothing of one's own to keep."""
        path = self.path(problem)
        if not path.exists() or path.read_bytes() == problem.stub.encode():
            return None
        return keep(path)

    def export(self, target: Path) -> int:
        """Everything as one zip file; the number of answers in it."""
        names = sorted(path for path in self.folder.glob("*.py") if path.is_file())
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(FILE_NAME, Progress.load(self.folder).dump())
            for path in names:
                archive.write(path, path.name)
        target.write_bytes(buffer.getvalue())
        return len(names)

    def load(self, source: Path, problems: list[Problem]) -> tuple[list[str], list[Path]]:
        """Take in an exported file: (answers written, backups of those that differed)."""
        known = {problem.file_name for problem in problems}
        with zipfile.ZipFile(source) as archive:
            answers = {name: archive.read(name) for name in checked_names(archive) if name in known}
            records = parse(archive.read(FILE_NAME).decode("utf-8"))[1]
        backups = []
        for name, content in answers.items():
            path = self.folder / name
            if path.exists() and path.read_bytes() != content:
                backups.append(keep(path))
            write_atomically(path, content.decode("utf-8"))
        mine = Progress.load(self.folder)
        for slug, record in records.items():
            mine.records[slug] = mine.get(slug).merged(record)
        mine.save()
        return sorted(answers), backups


def checked_names(archive: zipfile.ZipFile) -> list[str]:
    """The names in an export; anything that is not a plain small file is refused."""
    entries = archive.infolist()
    if len(entries) > MAX_ARCHIVE_FILES or FILE_NAME not in archive.namelist():
        raise ProblemError("this is not an export of the judge: it has no progress.json")
    for entry in entries:
        plain = PurePosixPath(entry.filename).name == entry.filename
        if not plain or "\\" in entry.filename or entry.file_size > MAX_FILE_BYTES:
            raise ProblemError(f"this is not an export of the judge: it holds {entry.filename!r}")
    return [entry.filename for entry in entries]


def keep(path: Path) -> Path:
    """Copy a file into `backup/` under a dated name that is still free."""
    folder = path.parent / "backup"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target, n = folder / f"{path.stem}-{stamp}{path.suffix}", 1
    while target.exists():
        n += 1
        target = folder / f"{path.stem}-{stamp}-{n}{path.suffix}"
    shutil.copy2(path, target)
    return target


def shorter(path: Path) -> str:
    """The path relative to the working folder, if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive on Windows
        return str(path)
    return min(relative, str(path), key=len)


def judge_command() -> str:
    """How the judge is called from here, with the Python in use."""
    return f"{python()} {shorter(PRACTICE / 'judge.py')}"


def python() -> str:
    """The interpreter in use as one types it: by its name if the search path leads there."""
    mine = os.path.abspath(sys.executable)
    for name in ("python", "python3"):
        found = shutil.which(name)
        if found and os.path.abspath(found) == mine:
            return name
    return shorter(Path(mine))
