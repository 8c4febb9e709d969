"""The judge itself: runs every case of a problem against an answer and says what is so."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import wire
from .case import Case
from .compare import examine
from .hosts import Host
from .limits import limits
from .misconceptions import NAMED_KINDS, recognise, settle
from .problems import Problem, one_thread
from .results import CaseResult, Failure, Report
from .rules import check_source
from .runner import Outcome, Process
from .verdicts import MAX_TEXT, changed_inputs, failure_of, not_started, strings

MAX_TIMEOUTS = 2
LATER_SHARE, LATER_MIN_S = 0.3, 1.0  # reference solutions take less; `verify` holds them to it


@dataclass(frozen=True)
class Submission:
    """An answer to judge: its text and the file name to show."""

    source: str
    file: str


class Listener:
    """Hears how a run goes on; the base hears nothing."""

    def chosen(self, cases: list[Case]) -> None: ...

    def starts(self, case: Case) -> None: ...

    def ended(self, result: CaseResult) -> None: ...


class Run:
    """One submission against one problem's cases, on one host."""

    def __init__(
        self,
        problem: Problem,
        submission: Submission,
        host: Host,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.problem, self.submission, self.host = problem, submission, host
        self.stop = stop
        self.process: Process | None = None
        self.n_timeouts = 0
        self.n_cases = 0
        self.printed = ""
        self.called: set[str] = set()

    def load(self) -> Failure | None:
        """A fresh process with the learner's file loaded, or why that failed."""
        # Linux limits the address space; macOS ignores such limits, so the judge looks itself
        polled = self.problem.memory_bytes if sys.platform == "darwin" else 0
        self.process = Process(self.host, polled, self.stop)
        request = {
            "op": "load",
            "source": self.submission.source,
            "filename": self.submission.file,
            "function": self.problem.function,
            "forbidden": self.problem.forbidden,
            "required": self.problem.required,
            "limits": limits(self.problem, self.process.folder, self.n_cases),
        }
        limit_s = self.limit(self.problem.limit_s)
        outcome = self.process.exchange(request, b"", limit_s)
        self.n_timeouts += outcome.kind == "timeout"
        self.printed = outcome.printed
        if failure := self.refused(outcome):
            return failure
        if outcome.kind == "loaded":
            return None
        return failure_of(
            outcome,
            self.problem,
            self.submission,
            "while your file was imported",
            limit_s,
        )

    def limit(self, limit_s: float) -> float:
        """After a timeout the answer is not accepted any more: nobody waits as long again."""
        return min(limit_s, max(LATER_SHARE * limit_s, LATER_MIN_S)) if self.n_timeouts else limit_s

    def case(self, case: Case) -> CaseResult:
        """Judge one case; a process that died is replaced first."""
        if self.n_timeouts >= MAX_TIMEOUTS:
            why = "not run: two cases timed out already"
            return CaseResult(case, "skip", Failure("skipped", why))
        if self.process is None or not self.process.alive:
            failure = self.load()
            if failure:
                return CaseResult(case, "fail", failure)
        encoder = wire.Encoder()
        tree = encoder.encode(list(case.inputs.values()))
        limit_s = self.limit(case.limit_s or self.problem.limit_s)
        outcome = self.process.exchange(
            {"op": "call", "inputs": tree}, bytes(encoder.block), limit_s
        )
        self.n_timeouts += outcome.kind == "timeout"
        return self.result(case, outcome, limit_s)

    def result(self, case: Case, outcome: Outcome, limit_s: float) -> CaseResult:
        """The verdict on one case, from data."""
        got, failure = None, self.refused(outcome)
        if failure is None and outcome.kind == "returned":
            try:
                got = wire.decode(outcome.header.get("value"), outcome.block)
            except wire.WireError as error:
                failure = Failure("malformed", f"your result could not be read: {error}")
            else:
                failure = self.judge_value(case, got, outcome)
        elif failure is None:
            failure = failure_of(
                outcome, self.problem, self.submission, f"in case {case.name}", limit_s
            )
        status = "fail" if failure else "pass"
        return CaseResult(case, status, failure, outcome.printed, outcome.seconds, got)

    def refused(self, outcome: Outcome) -> Failure | None:
        """What the answer's process noted: forbidden things tried, required calls made."""
        notes = outcome.header.get("notes")
        notes = notes if isinstance(notes, dict) else {}
        self.called.update(strings(notes.get("called")))
        tried = strings(notes.get("refused"))
        return Failure("forbidden", f"forbidden {tried[0][:MAX_TEXT]}") if tried else None

    def missing_call(self) -> Failure | None:
        """A required call that no case made."""
        for name in self.problem.required:
            if name not in self.called:
                why = "your file names it, but no case reached it"
                return Failure("required", f"missing call: {name} was never made", (why,))
        return None

    def judge_value(self, case: Case, got: Any, outcome: Outcome) -> Failure | None:
        tolerance = self.problem.tolerance(case)
        found = examine(got, case, tolerance)
        if found:
            said = recognise(self.problem, case, got, found.kind)
            return Failure.of(found.named(self.problem.result_names), case.hidden, said)
        if outcome.header.get("mutated") is True:
            return changed_inputs(outcome, case, recognise(self.problem, case, got, "mutated"))
        return None

    def close(self) -> None:
        if self.process is not None:
            self.process.end()


def judge(
    problem: Problem,
    submission: Submission,
    host: Host,
    *,
    seed: int | None = None,
    only: str | None = None,
    static: bool = True,
    listener: Listener | None = None,
    stop: Callable[[], bool] | None = None,
) -> Report:
    """Judge one submission; `only` runs one case, which never accepts the whole.

    Raises `Stopped` when `stop`, asked every now and then, says that nobody waits any more.
    """
    started = time.perf_counter()
    seed = secrets.randbits(31) if seed is None else seed
    report = Report(
        problem.slug, problem.title, submission.file, submission.source, seed, "not accepted"
    )
    failure = untouched(problem, submission)
    if failure is None and static:
        failure = check_source(submission.source, problem)
    if failure is None:
        run = Run(problem, submission, host, stop)
        try:
            report = run_cases(run, report, only, listener or Listener())
        finally:
            run.close()
    else:
        report = replace(report, failure=failure, verdict=verdict(failure))
    return replace(report, seconds=time.perf_counter() - started)


def run_cases(run: Run, report: Report, only: str | None, listener: Listener) -> Report:
    """Every case, in order; later cases run whatever happened to earlier ones."""
    cases = run.problem.cases(report.seed)
    run.n_cases = len(cases)
    chosen = choose(cases, only, run.problem)
    with one_thread():
        return judge_cases(run, report, chosen, only is None, listener)


def judge_cases(
    run: Run, report: Report, chosen: list[Case], all_of_them: bool, listener: Listener
) -> Report:
    """The chosen cases; only all of them together can be accepted."""
    if failure := run.load():
        return replace(
            report,
            failure=failure,
            verdict=verdict(failure),
            printed=run.printed,
            n_cases=run.n_cases,
            results=tuple(
                CaseResult(c, "skip", Failure("skipped", "skipped: your file did not load"))
                for c in chosen
            ),
        )
    printed, results = run.printed, []
    listener.chosen(chosen)
    for case in chosen:
        listener.starts(case)
        results.append(run.case(case))
        listener.ended(results[-1])
    results = settle(run.problem, results)
    report = replace(report, results=tuple(results), n_cases=run.n_cases, printed=printed)
    if not report.failed and all_of_them and (failure := run.missing_call()):
        report = replace(report, failure=failure)
    return replace(report, verdict=overall(report))


def choose(cases: list[Case], only: str | None, problem: Problem) -> list[Case]:
    """All cases, or the named one."""
    if only is None:
        return cases
    named = [case for case in cases if case.name == only]
    if not named:
        names = ", ".join(case.name for case in cases)
        raise ValueError(f"{problem.slug} has no case {only!r}; it has: {names}")
    return named


def overall(report: Report) -> str:
    """Accepted only if every case of the problem ran and passed."""
    if report.first_failure:
        return verdict(report.first_failure)
    if report.n_passed == report.n_cases and report.n_cases > 0:
        return "accepted"
    return f"not judged in full: {report.n_passed} of {report.n_cases} cases ran"


def verdict(failure: Failure) -> str:
    """The verdict a failure gives, in a few plain words."""
    if failure.kind in NAMED_KINDS:
        return "wrong answer"
    return {
        "not_started": "not started",
        "syntax": "syntax error",
        "exception": "error",
    }.get(failure.kind, failure.message.partition("\n")[0])


def untouched(problem: Problem, submission: Submission) -> Failure | None:
    """A failure if the stub is still as it was, spaces aside."""
    same = submission.source.split() == problem.stub.split()
    return not_started(submission.file) if same else None
