"""Values in words: small ones in full, large ones by shape."""

from __future__ import annotations

from typing import Any

from .compare import is_array, kind_name

SMALL_ELEMENTS = 32
SMALL_CHARACTERS = 400


def is_small(value: Any) -> bool:
    """Can the value be shown in full?"""
    if is_array(value):
        return n_elements(value) <= SMALL_ELEMENTS
    if isinstance(value, list | tuple):
        return all(map(is_small, value)) and len(repr(value)) <= SMALL_CHARACTERS
    if isinstance(value, dict):
        return all(map(is_small, value.values())) and len(repr(value)) <= SMALL_CHARACTERS
    return len(repr(value)) <= SMALL_CHARACTERS


def n_elements(array: Any) -> int:
    count = 1
    for size in array.shape:
        count *= size
    return count


def describe(value: Any) -> str:
    """One value for the report."""
    if is_array(value):
        return describe_array(value)
    if is_small(value):
        return repr(value)
    if isinstance(value, list | tuple):
        items = ", ".join(describe(item) for item in value[:4])
        return f"{kind_name(value)} of {len(value)}: {items}{', ...' if len(value) > 4 else ''}"
    if isinstance(value, dict):
        items = ", ".join(f"{key!r}: {describe(item)}" for key, item in list(value.items())[:8])
        return f"{{{items}{', ...' if len(value) > 8 else ''}}}"
    text = repr(value)
    return f"{text[:SMALL_CHARACTERS]}... ({len(text):,} characters)"


def describe_array(array: Any) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    shape = f"{dtype} {tuple(array.shape)}"
    strided = "" if is_contiguous(array) else ", not contiguous in memory"
    if is_small(array):
        return (
            f"{array!r}   {shape}{strided}"
            if len(array.shape) < 2
            else f"{array!r}\n{shape}{strided}"
        )
    return f"{kind_name(array)} {shape}{strided}"


def is_contiguous(array: Any) -> bool:
    if kind_name(array) == "numpy.ndarray":
        return bool(array.flags.c_contiguous)
    return array.is_contiguous()
