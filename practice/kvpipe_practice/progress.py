"""The learner's record: one small JSON file beside the answers, keyed by slug."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

VERSION = 1
FILE_NAME = "progress.json"
N_HINTS = 3
NEW_FILE_MODE = 0o644  # temporary files are readable by their owner only


class ProgressError(ValueError):
    """A record this version cannot use."""


@dataclass(frozen=True)
class Record:
    """What is known of one problem. Times are seconds since 1970, 0 for never."""

    started: float = 0.0
    solved: float = 0.0
    attempts: int = 0
    failed: int = 0
    hints: int = 0
    revealed: bool = False

    @property
    def state(self) -> str:
        if self.solved:
            return "solved"
        return "tried" if self.attempts else "untouched"

    def unlocked_hints(self, now: float) -> int:
        """One hint per failed attempt and per minute since the start."""
        minutes = int((now - self.started) // 60) if self.started else 0
        return min(N_HINTS, max(self.failed + minutes, self.hints))

    def judged(self, accepted: bool, now: float) -> Record:
        """After one full run; what was solved stays solved."""
        return replace(
            self,
            started=self.started or now,
            attempts=self.attempts + 1,
            failed=self.failed + (not accepted),
            solved=self.solved or (now if accepted else 0.0),
        )

    def merged(self, other: Record) -> Record:
        """The union of two machines' records."""
        first = [t for t in (self.started, other.started) if t]
        solved = [t for t in (self.solved, other.solved) if t]
        return Record(
            started=min(first, default=0.0),
            solved=min(solved, default=0.0),
            attempts=max(self.attempts, other.attempts),
            failed=max(self.failed, other.failed),
            hints=max(self.hints, other.hints),
            revealed=self.revealed or other.revealed,
        )


@dataclass
class Progress:
    """All records, and the problem worked on last."""

    path: Path
    current: str = ""
    records: dict[str, Record] = field(default_factory=dict)
    notice: str = ""

    @classmethod
    def load(cls, folder: Path) -> Progress:
        """Read the record; an unreadable one is kept aside under a dated name."""
        path = folder / FILE_NAME
        if not path.exists():
            return cls(path)
        try:
            current, records = parse(path.read_text(encoding="utf-8"))
        except ProgressError:
            raise
        except (OSError, ValueError, TypeError, AttributeError) as error:
            aside = path.with_name(f"progress-unreadable-{time.strftime('%Y%m%d-%H%M%S')}.json")
            os.replace(path, aside)
            notice = f"{FILE_NAME} could not be read ({error}); kept as {aside.name}, started anew"
            return cls(path, notice=notice)
        return cls(path, current, records)

    def get(self, slug: str) -> Record:
        return self.records.get(slug, Record())

    def put(self, slug: str, record: Record) -> None:
        """Change one record and save; other processes' changes to other slugs survive."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            _, on_disk = parse(self.path.read_text(encoding="utf-8"))
            self.records = {**self.records, **on_disk}
        self.records[slug] = record
        self.current = slug
        self.save()

    def dump(self) -> str:
        records = {slug: asdict(record) for slug, record in sorted(self.records.items())}
        content = {"version": VERSION, "current": self.current, "problems": records}
        return json.dumps(content, indent=1) + "\n"

    def save(self) -> None:
        write_atomically(self.path, self.dump())


def parse(text: str) -> tuple[str, dict[str, Record]]:
    """(current slug, records) of a record's text."""
    content: Any = json.loads(text)
    if content["version"] > VERSION:
        raise ProgressError(
            f"{FILE_NAME} has version {content['version']}, this judge reads up to {VERSION}; "
            "update the handbook, or move the file away to start anew"
        )
    names = {field.name for field in fields(Record)}
    records = {
        str(slug): Record(**{key: value for key, value in entry.items() if key in names})
        for slug, entry in content["problems"].items()
    }
    return str(content.get("current", "")), records


def write_atomically(path: Path, text: str) -> None:
    """Write the whole file or nothing, also when the machine stops in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else NEW_FILE_MODE)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
