"""What a judged run found, as plain records, and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .case import Case
from .compare import Finding

SCHEMA_VERSION = 1
PRINTED_LIMIT = 500


@dataclass(frozen=True)
class Failure:
    """Why a case, or the whole file, was not accepted."""

    kind: str
    message: str
    lines: tuple[str, ...] = ()
    misconception: str = ""
    frames: tuple[tuple[str, int, str], ...] = ()
    path: tuple = ()

    @classmethod
    def of(cls, found: Finding, hidden: bool, misconception: str = "") -> Failure:
        """A difference as a failure; a hidden case keeps the expected values to itself."""
        values = () if hidden else found.values
        return cls(
            found.kind, found.message, (*values, *found.lines), misconception, path=found.path
        )


@dataclass(frozen=True)
class CaseResult:
    """One case: passed, failed, or skipped; skipped is never passed."""

    case: Case
    status: str
    failure: Failure | None = None
    printed: str = ""
    seconds: float = 0.0
    got: Any = None


@dataclass(frozen=True)
class Report:
    """A whole run; `failure` is set when the file failed before any case could run."""

    slug: str
    title: str
    file: str
    source: str
    seed: int
    verdict: str
    failure: Failure | None = None
    results: tuple[CaseResult, ...] = ()
    n_cases: int = 0
    printed: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def accepted(self) -> bool:
        return self.verdict == "accepted"

    @property
    def first_failure(self) -> Failure | None:
        """The failure that gave the verdict."""
        if self.failure:
            return self.failure
        return next((r.failure for r in self.results if r.failure), None)

    @property
    def failed(self) -> list[CaseResult]:
        return [result for result in self.results if result.status == "fail"]

    @property
    def n_passed(self) -> int:
        return sum(result.status == "pass" for result in self.results)


def clean(text: str) -> str:
    """Text from an answer, safe to print: control characters become visible escapes."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def cut(text: str, limit: int = PRINTED_LIMIT) -> str:
    """At most `limit` characters, with a notice of what was cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n... cut: {limit} of {len(text):,} characters shown"


def to_json(report: Report) -> dict:
    """The documented form (see README.md); close to exercism's results.json version 3."""
    failure = report.failure
    status = "pass" if report.accepted else "fail"
    if failure is not None and failure.kind != "not_started":
        status = "error"
    return {
        "version": SCHEMA_VERSION,
        "slug": report.slug,
        "status": status,
        "verdict": report.verdict,
        "message": failure_text(failure) if failure else None,
        "kind": report.first_failure.kind if report.first_failure else None,
        "seed": report.seed,
        "passed": report.n_passed,
        "cases": report.n_cases,
        "seconds": round(report.seconds, 3),
        "tests": [case_to_json(result) for result in report.results],
    }


def case_to_json(result: CaseResult) -> dict:
    failure = result.failure
    return {
        "name": result.case.name,
        "status": result.status,
        "kind": failure.kind if failure else None,
        "message": failure_text(failure) if failure else None,
        "misconception": (failure.misconception or None) if failure else None,
        "output": cut(result.printed) or None,
        "tests": result.case.tests,
        "hidden": result.case.hidden,
        "seconds": round(result.seconds, 4),
    }


def failure_text(failure: Failure) -> str:
    return "\n".join((failure.message, *failure.lines))
