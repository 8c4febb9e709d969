"""Proof that every problem works: what `judge.py verify` runs, for authors and CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import wire
from .case import Case, Tolerance
from .compare import compare, examine, is_array
from .folders import check_folder, check_root
from .hosts import Host, make_host
from .judging import Submission, judge
from .misconceptions import NAMED_KINDS
from .problems import Problem, Wrong, one_thread
from .results import Report, failure_text

SEEDS = (0, 1, 2)
SLOWEST_SHARE = 0.3
CLEARLY_OFF = 0.05


def verify_all(
    chosen: list[Problem], hosts: dict[bool, Host], root: Path
) -> Iterator[tuple[str, list[str]]]:
    """(slug, complaints) of each problem; `hosts` is filled, the caller closes them."""
    for problem in chosen:
        if problem.torch not in hosts:
            hosts[problem.torch] = make_host(problem.torch)
        yield problem.slug, list(verify(problem, hosts[problem.torch]))
    if complaints := list(check_root(root)):
        yield str(root), complaints


def verify(problem: Problem, host: Host) -> Iterator[str]:
    """Every complaint about one problem; none means that it is proven."""
    try:
        yield from check_folder(problem)
        with one_thread():
            complaints = list(check_cases(problem))
        yield from complaints
        yield from check_stub(problem, host)
        yield from check_solution(problem, host)
        for wrong in problem.wrong:
            yield from check_wrong(problem, wrong, host)
    except Exception as error:  # an author's mistake anywhere is a complaint, not the end
        yield f"{type(error).__name__}: {error}"


def run(problem: Problem, source: str, file: str, host: Host, seed: int) -> Report:
    return judge(problem, Submission(source, file), host, seed=seed)


def where(report: Report) -> str:
    """The case that gave the verdict, `file` if none could run."""
    failure = report.first_failure
    return next((r.case.name for r in report.results if r.failure is failure), "file")


def why(report: Report) -> str:
    failure = report.first_failure
    kind = failure.kind if failure else "none"
    text = failure_text(failure) if failure else ""
    return f"{report.verdict} (kind {kind}) in {where(report)}: {text}"


def check_stub(problem: Problem, host: Host) -> Iterator[str]:
    """The stub fails fast, kindly, also when something else in it was changed."""
    for source in (problem.stub, problem.stub + "\n# touched\n"):
        report = run(problem, source, problem.file_name, host, 0)
        failure = report.first_failure
        if failure is None or failure.kind != "not_started":
            yield f"the stub does not fail with the kind message: {why(report)}"


def check_solution(problem: Problem, host: Host) -> Iterator[str]:
    """Accepted whatever the seed, with time to spare."""
    for seed in SEEDS:
        report = run(problem, problem.solution, "solution.py", host, seed)
        if not report.accepted:
            yield f"the solution is not accepted (seed {seed}): {why(report)}"
        for result in report.results:
            limit_s = (result.case.limit_s or problem.limit_s) * SLOWEST_SHARE
            if result.seconds > limit_s:
                yield f"the solution takes {result.seconds:.1f} s in {result.case.name}"


def check_wrong(problem: Problem, wrong: Wrong, host: Host) -> Iterator[str]:
    """Rejected first in its case, in its way, with its message, whatever the seed."""
    name = f"wrong/{wrong.path.name}"
    for seed in SEEDS[:2]:
        report = run(problem, wrong.source, wrong.path.name, host, seed)
        failure = report.first_failure
        if failure is None:
            yield f"{name} is accepted (seed {seed})"
        elif (where(report), failure.kind) != (wrong.case, wrong.kind):
            yield f"{name} should fail in {wrong.case} by {wrong.kind}; seed {seed}: {why(report)}"
        elif failure.kind in NAMED_KINDS and failure.misconception != wrong.message:
            yield f"{name} is taken for another mistake: {failure.misconception!r}"


def check_cases(problem: Problem) -> Iterator[str]:
    """Seeds, names, tolerances, and that no constant passes."""
    cases, again, other = problem.cases(0), problem.cases(0), problem.cases(1)
    names = [case.name for case in cases]
    if names != [case.name for case in other]:
        yield "the names of the cases depend on the seed"
    for one, two in zip(cases, again, strict=True):
        if encoded(one) != encoded(two):
            yield f"case {one.name} differs between two runs with the same seed"
    hidden = [i for i, case in enumerate(cases) if case.hidden]
    if not any(encoded(cases[i]) != encoded(other[i]) for i in hidden):
        yield "no hidden case depends on the seed"
    for case in cases:
        yield from check_case(problem, case)
    yield from check_constants(problem, cases)


def encoded(case: Case) -> tuple[list, bytes]:
    encoder = wire.Encoder()
    tree = encoder.encode([*case.inputs.values(), case.expected])
    return tree, bytes(encoder.block)


def check_case(problem: Problem, case: Case) -> Iterator[str]:
    """The expected value equals itself, and anything clearly off is refused."""
    tolerance = problem.tolerance(case)
    if found := examine(case.expected, case, tolerance):
        yield f"case {case.name}: the expected value does not equal itself: {found.message}"
    off = list(scaled(case.expected, 1 + CLEARLY_OFF))
    if off and tolerance is None and not off[0][1]:
        yield f"case {case.name}: floating point without a tolerance"
    for changed, is_zero in off:
        if not is_zero and compare(changed, case.expected, tolerance) is None:
            yield f"case {case.name}: {CLEARLY_OFF:.0%} off passes; the tolerance is too wide"
    if case.name.startswith("random"):
        for name, value in case.inputs.items():
            if is_array(value) and len(set(value.shape)) < len(value.shape):
                yield f"case {case.name}: two sizes of {name} {tuple(value.shape)} are the same"


def scaled(value: Any, factor: float) -> Iterator[tuple[Any, bool]]:
    """(the value with one floating point part scaled, whether that part is all zero)."""
    if is_array(value) and "float" in str(value.dtype):
        yield value * factor, not bool((value != 0).any())
    elif type(value) is float:
        yield value * factor, value == 0
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            for changed, is_zero in scaled(item, factor):
                yield [*value[:i], changed, *value[i + 1 :]], is_zero
    elif isinstance(value, dict):
        for key, item in value.items():
            for changed, is_zero in scaled(item, factor):
                yield {**value, key: changed}, is_zero


def check_constants(problem: Problem, cases: list[Case]) -> Iterator[str]:
    """Zeros, a constant of the right size, or one case's value for all: every one must fail."""

    def passes(case: Case, value: Any) -> bool:
        tolerance: Tolerance | None = problem.tolerance(case)
        return examine(value, case, tolerance) is None

    for number, word in ((0.0, "zeros"), (1.0, "ones"), (None, "the mean")):
        if all(passes(case, filled(case.expected, number)) for case in cases):
            yield f"an answer that always returns {word} would be accepted"
    for guess in cases:
        if all(passes(case, guess.expected) for case in cases):
            yield f"an answer that always returns the value of case {guess.name} would be accepted"


def filled(value: Any, number: float | None) -> Any:
    """The same structure with every number replaced; by its mean if the number is None."""
    if is_array(value):
        if number is None:
            mean = value.double().mean() if hasattr(value, "double") else value.mean()
            return value * 0 + mean.item() if "float" in str(value.dtype) else value * 0
        return value * 0 + number if "float" in str(value.dtype) else value * 0 + int(number)
    if isinstance(value, list | tuple):
        return [filled(item, number) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, number) for key, item in value.items()}
    if isinstance(value, bool):
        return bool(number)
    return type(value)(number or 0) if isinstance(value, int | float) else value
