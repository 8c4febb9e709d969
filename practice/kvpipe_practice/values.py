"""Values in words: small ones in full, large ones by shape."""

from __future__ import annotations

from typing import Any

from .compare import is_array, kind_name, shown

SMALL_ELEMENTS = 32
SMALL_CHARACTERS = 400
NEWLINE = "\n"


def is_small(value: Any) -> bool:
    """Can the value be shown in full?"""
    return weight(value, SMALL_CHARACTERS) <= SMALL_CHARACTERS


def weight(value: Any, limit: int) -> int:
    """About how many characters a value takes; counting stops above the limit."""
    if is_array(value):
        return 0 if n_elements(value) <= SMALL_ELEMENTS else limit + 1
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if not isinstance(value, list | tuple):
        return len(shown(value))
    total = 2
    for item in value:
        total += 2 + weight(item, limit)
        if total > limit:
            break
    return total


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
        return shown(value)
    if isinstance(value, list | tuple):
        items = ", ".join(describe(item) for item in value[:4])
        return f"{kind_name(value)} of {len(value)}: {items}{', ...' if len(value) > 4 else ''}"
    if isinstance(value, dict):
        items = ", ".join(
            f"{shown(key)}: {describe(item)}" for key, item in list(value.items())[:8]
        )
        return f"{{{items}{', ...' if len(value) > 8 else ''}}}"
    return shown(value)


def describe_array(array: Any) -> str:
    if is_small(array):
        gap = "   " if len(array.shape) < 2 else NEWLINE
        return f"{array!r}{gap}{form(array)}"
    return in_short(array)


def in_short(array: Any) -> str:
    return f"{kind_name(array)} {form(array)}"


def form(array: Any) -> str:
    """Dtype and shape, and whether memory is in another order."""
    dtype = str(array.dtype).removeprefix("torch.")
    strided = "" if is_contiguous(array) else ", not contiguous in memory"
    return f"{dtype} {tuple(array.shape)}{strided}"


def is_contiguous(array: Any) -> bool:
    if kind_name(array) == "numpy.ndarray":
        return bool(array.flags.c_contiguous)
    return array.is_contiguous()
