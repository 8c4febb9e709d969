"""Recognise a known mistake: the wrong answer of the problem that gives the same result."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from .case import Case
from .compare import compare, is_array, is_floating
from .problems import Problem, wrong_function
from .results import CaseResult

VALUE_KINDS = ("value", "shape", "dtype", "nan", "type")
NAMED_KINDS = (*VALUE_KINDS, "missing_return", "mutated")
STANDS_FOR_NAN = 1.2345e33


def recognise(problem: Problem, case: Case, got: Any, kind: str) -> str:
    """The message of the wrong answer that this result belongs to, "" if there is none."""
    if kind in ("missing_return", "mutated"):
        return next((wrong.message for wrong in problem.wrong if wrong.kind == kind), "")
    own_case_first = sorted(problem.wrong, key=lambda wrong: wrong.case != case.name)
    for wrong in own_case_first:
        if wrong.kind in VALUE_KINDS and gives(problem, wrong, case, got):
            return wrong.message
    return ""


def settle(problem: Problem, results: list[CaseResult]) -> list[CaseResult]:
    """One diagnosis for a whole run: the one that explains every failure, else the first."""
    failing = [r for r in results if r.failure and r.failure.kind in VALUE_KINDS]
    said = dict.fromkeys(r.failure.misconception for r in failing if r.failure.misconception)
    if len(said) < 2:
        return results
    by_message = {wrong.message: wrong for wrong in problem.wrong}
    best = next(
        (
            text
            for text in said
            if all(gives(problem, by_message[text], r.case, r.got) for r in failing)
        ),
        "",
    )
    kept = best or next(iter(said))
    return [
        replace(r, failure=replace(r.failure, misconception=kept if best or of(r) == kept else ""))
        if r in failing
        else r
        for r in results
    ]


def of(result: CaseResult) -> str:
    return result.failure.misconception if result.failure else ""


def gives(problem: Problem, wrong: Any, case: Case, got: Any) -> bool:
    """Does this wrong answer give this result in this case?"""
    inputs = deepcopy(list(case.inputs.values()))
    try:
        same = wrong_function(wrong, problem.function)(*inputs)
        return compare(no_nan(got), no_nan(same), problem.tolerance(case)) is None
    except Exception:  # a wrong answer may fail in any way on a case that is not its own
        return False


def no_nan(value: Any) -> Any:
    """The value with one fixed number for every NaN, so that two NaN count as the same."""
    if is_array(value) and is_floating(value):
        value = value.clone() if hasattr(value, "clone") else value.copy()
        value[value != value] = STANDS_FOR_NAN if value.dtype.itemsize > 2 else 60000.0
        return value
    if type(value) is float:
        return STANDS_FOR_NAN if value != value else value
    if isinstance(value, list | tuple):
        return [no_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: no_nan(item) for key, item in value.items()}
    return value
