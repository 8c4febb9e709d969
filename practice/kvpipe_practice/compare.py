"""Is the value right? Exact where exact is due, elsewhere within a share of the data's size."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .case import Case, Tolerance

MAX_SHOWN = 400
MAX_KEYS = 12
NEAR_MISS = 1000


@dataclass(frozen=True)
class Finding:
    """One difference: its kind, one sentence, lines that tell more, lines that tell the answer."""

    kind: str
    message: str
    lines: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    path: tuple = ()

    def inside(self, key: Any) -> Finding:
        """The same, found in the part of a result that `key` leads to."""
        return replace(self, path=(key, *self.path))

    def named(self, names: Sequence[str]) -> Finding:
        """With the statement's names in place of `result[0]`, `result[1]`, ..."""
        if not self.path or type(self.path[0]) is not int or self.path[0] >= len(names):
            return self
        old, new = f"result[{self.path[0]}]", names[self.path[0]]
        return replace(
            self,
            message=self.message.replace(old, new),
            values=tuple(line.replace(old, new) for line in self.values),
        )


def kind_name(value: Any) -> str:
    """A type in the words of a learner."""
    if value is None:
        return "None"
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return f"{module}.{kind.__name__}" if module in ("torch", "numpy") else kind.__name__


def examine(got: Any, case: Case, tolerance: Tolerance | None) -> Finding | None:
    """What is wrong with a result; where many are right, the case's own check says so."""
    if case.check is None or got is None:
        return compare(got, case.expected, tolerance)
    try:
        message, *lines = case.check(got).splitlines() or [""]
    except Exception:  # a check reads what an answer made up; no such value may end the judge
        return Finding("type", "your result does not have the form that the statement asks for")
    return Finding("value", message, tuple(lines)) if message else None


def compare(
    got: Any, expected: Any, tolerance: Tolerance | None, where: str = ""
) -> Finding | None:
    """The first difference between a result and what was expected, None if there is none."""
    if got is None and expected is not None:
        if where:
            return Finding("type", f"{where} is None; expected {a(expected)}")
        return Finding("missing_return", "your function returned None; is a `return` missing?")
    if is_array(expected):
        return compare_arrays(got, expected, tolerance, where)
    if isinstance(expected, bool | str) or expected is None:
        if type(got) is not type(expected):
            return wrong_type(got, expected, where)
        return None if got == expected else wrong_value(got, expected, where)
    if isinstance(expected, int | float):
        return compare_numbers(got, expected, tolerance, where)
    if isinstance(expected, dict):
        return compare_dicts(got, expected, tolerance, where)
    if isinstance(expected, list | tuple):
        return compare_sequences(got, expected, tolerance, where)
    raise TypeError(f"cases.py expects a {kind_name(expected)}, which cannot be compared")


def is_array(value: Any) -> bool:
    return kind_name(value) in ("torch.Tensor", "torch.Parameter", "numpy.ndarray")


def a(value: Any) -> str:
    """A type with its article."""
    name = kind_name(value)
    return name if value is None else f"{'an' if name[0] in 'aeio' else 'a'} {name}"


def shown(value: Any) -> str:
    """repr, cut; also of what repr refuses (integers of more than 4,300 digits)."""
    try:
        text = repr(value)
    except ValueError:
        return f"{a(value)} too large to show"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def both(got: Any, expected: Any) -> tuple[str, str]:
    return f"expected {shown(expected)}", f"got {shown(got)}"


def number(value: int | float | complex) -> str:
    """Integers in full, others to seven digits."""
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def subject(where: str) -> str:
    return where or "your result"


def wrong_type(got: Any, expected: Any, where: str) -> Finding:
    return Finding("type", f"{subject(where)} is {a(got)}; expected {a(expected)}")


def wrong_value(got: Any, expected: Any, where: str) -> Finding:
    return Finding("value", f"{subject(where)} is wrong", values=both(got, expected))


def compare_numbers(got: Any, expected: Any, tolerance: Tolerance | None, where: str):
    """Integers exactly; floats within the tolerance, if the problem has one."""
    if type(got) not in (int, float) or (type(expected) is int and type(got) is not int):
        return wrong_type(got, expected, where)
    if got != got:
        return Finding("nan", f"{subject(where)} is NaN", values=(f"expected {expected!r}",))
    if type(expected) is int or tolerance is None or math.inf in (abs(expected), abs(got)):
        return None if got == expected else wrong_value(got, expected, where)
    try:
        error = abs(float(got) - expected)
    except OverflowError:
        error = math.inf
    allowed = tolerance.rel * abs(expected)
    if error <= allowed:
        return None
    found = wrong_value(got, expected, where)
    lines = distance(error, allowed, tolerance)
    return Finding("value", found.message, tuple(lines), found.values)


def distance(error: float, allowed: float, tolerance: Tolerance) -> list[str]:
    """How far off; how much would be right, and why, only where that may be the question."""
    if not error <= NEAR_MISS * allowed:
        return [f"largest error {error:.3g}, far beyond rounding"]
    size = f"{tolerance.rel:g} of the data's size"
    return [
        f"largest error {error:.3g}, allowed there {allowed:.3g} ({size})",
        f"why this tolerance: {tolerance.why}",
    ]


def compare_dicts(got: Any, expected: dict, tolerance: Tolerance | None, where: str):
    if type(got) is not dict:
        return wrong_type(got, expected, where)
    if got.keys() != expected.keys():
        missing = [f"missing {shown(key)}" for key in expected if key not in got]
        extra = [f"unexpected {shown(key)}" for key in got if key not in expected]
        text = f"{subject(where)} has the wrong keys"
        return Finding("value", text, values=(", ".join((*missing, *extra)[:MAX_KEYS]),))
    for key, value in expected.items():
        if found := compare(got[key], value, tolerance, f"{where or 'result'}[{shown(key)}]"):
            return found.inside(key)
    return None


def compare_sequences(got: Any, expected: list | tuple, tolerance: Tolerance | None, where: str):
    """Lists and tuples count as the same; lengths and items must agree."""
    if type(got) not in (list, tuple):
        return wrong_type(got, expected, where)
    if len(got) != len(expected):
        n = f"{subject(where)} has {len(got)} items; expected {len(expected)}"
        return Finding("shape", n, values=both(got, expected))
    for i, (one, other) in enumerate(zip(got, expected, strict=True)):
        if found := compare(one, other, tolerance, f"{where or 'result'}[{i}]"):
            return found.inside(i)
    return None


def compare_arrays(got: Any, expected: Any, tolerance: Tolerance | None, where: str):
    """Type, shape, dtype, NaN, then values."""
    name = subject(where)
    if not is_array(got) or kind_name(got).split(".")[0] != kind_name(expected).split(".")[0]:
        return wrong_type(got, expected, where)
    if tuple(got.shape) != tuple(expected.shape):
        return Finding(
            "shape", f"{name} has shape {tuple(got.shape)}; expected {tuple(expected.shape)}"
        )
    if got.dtype != expected.dtype:
        return Finding("dtype", f"{name} has dtype {got.dtype}; expected {expected.dtype}")
    exact = tolerance is None or not is_floating(expected)
    return differing_elements(as_float64(got), as_float64(expected), exact, tolerance, name)


def is_floating(array: Any) -> bool:
    return "float" in str(array.dtype) or "complex" in str(array.dtype)


def as_float64(array: Any) -> Any:
    """As a numpy array in which values can be subtracted without overflow."""
    import numpy

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        array = (array.double() if array.is_floating_point() else array).numpy()
    if array.dtype == numpy.bool_ or array.dtype.kind in "iu":
        return array.astype(numpy.int64) if array.dtype != numpy.int64 else array
    return array.astype(numpy.complex128 if array.dtype.kind == "c" else numpy.float64)


def allowed_error(expected: Any, tolerance: Tolerance) -> Any:
    """Per element: rel times the larger of its magnitude and its row's root mean square."""
    import numpy

    magnitude = numpy.where(numpy.isfinite(expected), abs(expected), 0.0)
    axis = -1 if tolerance.per == "row" and magnitude.ndim else None
    if not magnitude.size:
        return magnitude
    rms = numpy.sqrt(numpy.mean(magnitude**2, axis=axis, keepdims=True))
    return tolerance.rel * numpy.maximum(magnitude, rms)


def differing_elements(got: Any, expected: Any, exact: bool, tolerance: Any, name: str):
    """How many elements are wrong, which first, and how far off the worst is."""
    import numpy

    if exact:
        wrong, allowed = got != expected, None
    else:
        if numpy.isnan(got).any():
            return nan_finding(got, expected, name)
        allowed = allowed_error(expected, tolerance)
        with numpy.errstate(invalid="ignore"):
            error = numpy.where(got == expected, 0.0, abs(got - expected))
        wrong = ~(error <= allowed)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in numpy.argwhere(wrong)[0])
    lines = []
    value = (
        f"first wrong element {list(first)}: expected {number(expected[first].item())}, "
        f"got {number(got[first].item())}"
    )
    if allowed is not None:
        worst = numpy.unravel_index(numpy.argmax(numpy.where(wrong, error, -1)), error.shape)
        lines += distance(float(error[worst]), float(allowed[worst]), tolerance)
    message = f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are wrong"
    return Finding("value", message, tuple(lines), (value,))


def nan_finding(got: Any, expected: Any, name: str) -> Finding:
    import numpy

    bad = numpy.isnan(got)
    first = tuple(int(i) for i in numpy.argwhere(bad)[0])
    return Finding(
        "nan",
        f"{int(bad.sum()):,} of {bad.size:,} elements of {name} are NaN",
        (f"first NaN at {list(first)}",),
        (f"expected there {number(expected[first].item())}",),
    )
