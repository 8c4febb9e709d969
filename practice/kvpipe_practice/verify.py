"""Proof that every problem works: what `judge.py verify` runs, for authors and CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .hosts import Host, make_host
from .judging import Submission, judge
from .problems import Problem
from .results import Report, failure_text

SEEDS = (0, 1, 2)


def verify_all(
    chosen: list[Problem], hosts: dict[bool, Host], root: Path
) -> Iterator[tuple[str, list[str]]]:
    """(slug, complaints) of each problem; `hosts` is filled, the caller closes them."""
    for problem in chosen:
        if problem.torch not in hosts:
            hosts[problem.torch] = make_host(problem.torch)
        yield problem.slug, list(verify(problem, hosts[problem.torch]))


def verify(problem: Problem, host: Host) -> Iterator[str]:
    """Every complaint about one problem; none means that it is proven."""
    yield from check_stub(problem, host)
    yield from check_solution(problem, host)
    yield from check_wrong(problem, host)
    if len(problem.hints) != 3:
        yield f"hints.md has {len(problem.hints)} sections; three are needed"


def run(problem: Problem, source: str, file: str, host: Host, seed: int) -> Report:
    return judge(problem, Submission(source, file), host, seed=seed)


def why(report: Report) -> str:
    failure = report.first_failure
    name = next((r.case.name for r in report.results if r.failure is failure), "-")
    return f"{report.verdict} [{name}] {failure_text(failure) if failure else ''}"


def check_stub(problem: Problem, host: Host) -> Iterator[str]:
    """The stub fails fast, kindly, also when it is no longer identical."""
    for source in (problem.stub, problem.stub + "\n# touched\n"):
        report = run(problem, source, problem.file_name, host, 0)
        failure = report.first_failure
        if failure is None or failure.kind != "not_started":
            yield f"the stub does not fail with the kind message: {why(report)}"


def check_solution(problem: Problem, host: Host) -> Iterator[str]:
    for seed in SEEDS:
        report = run(problem, problem.solution, "solution.py", host, seed)
        if not report.accepted:
            yield f"the solution is not accepted (seed {seed}): {why(report)}"


def check_wrong(problem: Problem, host: Host) -> Iterator[str]:
    """Every wrong answer fails first in its case, in its way, with its message."""
    if len(problem.wrong) < 3:
        yield f"{len(problem.wrong)} wrong answers; at least three are needed"
    for wrong in problem.wrong:
        for seed in SEEDS[:2]:
            report = run(problem, wrong.source, wrong.path.name, host, seed)
            failure = report.first_failure
            if failure is None:
                yield f"wrong/{wrong.path.name} is accepted (seed {seed})"
                continue
            name = next((r.case.name for r in report.results if r.failure is failure), "file")
            if (name, failure.kind) != (wrong.case, wrong.kind):
                yield (
                    f"wrong/{wrong.path.name} should fail in {wrong.case} by {wrong.kind}, "
                    f"but: {failure.kind}, {why(report)}"
                )
            elif failure.kind in ("value", "nan", "shape") and (
                failure.misconception != wrong.message
            ):
                yield (
                    f"wrong/{wrong.path.name} is not recognised; the learner would read "
                    f"{failure.misconception!r}"
                )
