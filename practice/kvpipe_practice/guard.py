"""Rules of an answer's process at run time."""

from __future__ import annotations


def install(forbidden: list[str], required: list[str]) -> None:
    """Install."""


def reset() -> None:
    """Reset."""


def notes() -> dict:
    """Notes."""
    return {}
