"""Limits of an answer's process."""

from __future__ import annotations


def confine(limits: dict) -> None:
    """Placeholder body; see below."""
