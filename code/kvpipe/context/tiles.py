"""What a block of queries may see of a block of keys, if possible without a mask (chapter 3).

No tensors: ascending positions as sequences of integers. A query sees a stretch of the keys. In
every partition of this chapter those stretches make a rectangle or a triangle, which a kernel
computes without a mask and without touching what nobody sees.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Tile(NamedTuple):
    """The part of a block that has to be computed."""

    kind: str  # "none", "full", "causal" (row i sees keys 0..i) or "masked"
    rows: slice = slice(0, 0)  # queries that see anything
    keys: slice = slice(0, 0)  # keys that are seen by any
    pairs: int = 0  # visible (query, key) pairs


NOTHING = Tile("none")


def seen_by_each(
    queries: Sequence[int], keys: Sequence[int], causal: bool = True, window: int | None = None
) -> list[tuple[int, int]]:
    """Per query the first key it sees and the one after the last. Both ascending, all >= 0.

    A query at p sees keys at s <= p and, with a sliding window, p - s < window.
    """
    if not causal:
        return [(0, len(keys))] * len(queries)
    ends = [bisect_right(keys, query) for query in queries]
    if window is None:
        return [(0, end) for end in ends]
    return [
        (min(bisect_left(keys, query - window + 1), end), end)
        for query, end in zip(queries, ends, strict=True)
    ]


def tile(
    queries: Sequence[int], keys: Sequence[int], causal: bool = True, window: int | None = None
) -> Tile:
    """The tile of a block of queries and a block of keys. Arguments as in `seen_by_each`."""
    seen = seen_by_each(queries, keys, causal, window)
    rows = [row for row, (start, end) in enumerate(seen) if start < end]
    if not rows:
        return NOTHING
    first, n_rows = rows[0], rows[-1] - rows[0] + 1
    seen = seen[first : first + n_rows]
    start = min(start for start, end in seen if start < end)
    stop = max(end for _, end in seen)
    spans = [(a - start, b - start) for a, b in seen]
    pairs = sum(b - a for a, b in spans)
    kind = _kind(spans, stop - start)
    return Tile(kind, slice(first, first + n_rows), slice(start, stop), pairs)


def _kind(spans: Sequence[tuple[int, int]], n_keys: int) -> str:
    if all(span == (0, n_keys) for span in spans):
        return "full"
    if len(spans) == n_keys and all(span == (0, i + 1) for i, span in enumerate(spans)):
        return "causal"
    return "masked"
