"""What can be said of an answer without running it: is it Python, does it keep the rules?"""

from __future__ import annotations

import ast

from .problems import Problem
from .results import Failure


def check_source(source: str, problem: Problem) -> Failure | None:
    """The first thing that makes a file unacceptable before it runs."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"line {line}: " if line else ""
        return Failure("syntax", f"{where}{getattr(error, 'msg', error)}")
    return None
