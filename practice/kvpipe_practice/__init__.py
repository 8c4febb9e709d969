"""The judge of the KV-Pipe Handbook: graded exercises, judged outside the answer's process.

In a notebook: `from kvpipe_practice import check, hint, panel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .notebook import case_inputs, check, hint, panel, solution

__all__ = ["case_inputs", "check", "hint", "panel", "solution"]


def __getattr__(name: str) -> Any:
    """The notebook's functions, imported when they are first used."""
    if name in __all__:
        from . import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
