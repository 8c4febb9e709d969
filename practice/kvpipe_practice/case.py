"""What a problem's cases.py is made of: cases with inputs and expected values, and tolerances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the expected one, always relative to the data.

    An element may differ by `rel` times the larger of its own expected magnitude and the root
    mean square of its row (`per="row"`, the last dimension) or of the whole tensor
    (`per="tensor"`, for results that cancel to almost nothing in some rows).
    There is no absolute tolerance: where zeros are expected, only zeros pass.
    """

    rel: float
    why: str
    per: str = "row"

    def __post_init__(self) -> None:
        if not 0 < self.rel <= 0.05:
            raise ValueError(f"rel is {self.rel}; it must be above 0 and at most 0.05")
        if self.per not in ("row", "tensor"):
            raise ValueError(f"per is {self.per!r}; it must be 'row' or 'tensor'")
        if not self.why.strip():
            raise ValueError("why is empty; say what makes this tolerance right")


@dataclass(frozen=True)
class Case:
    """One call of the learner's function and what it must return.

    `tests` is one sentence: what this case tests. `inputs` are passed by position, in order; the
    names are for the reader. A hidden case shows its inputs but not the expected values.
    Where many answers are right, `check` judges a result and `expected` is one of them.
    """

    name: str
    tests: str
    inputs: dict[str, Any]
    expected: Any
    hidden: bool = False
    tolerance: Tolerance | None = None
    limit_s: float | None = None
    check: Callable[[Any], str] | None = None

    @property
    def label(self) -> str:
        return f"{self.name} (hidden)" if self.hidden else self.name
