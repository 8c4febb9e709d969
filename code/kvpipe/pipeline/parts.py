"""How a batch is cut: into micro-batches by rows, and into segments by columns (chapter 2).

No tensors: rows and columns as slices, so that every rank knows the shape of every message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvpipe.pipeline.ops import Op, Schedule
from kvpipe.pipeline.segments import equal_segments


@dataclass(frozen=True)
class Cut:
    """The rows of every micro-batch and the columns of every segment."""

    rows: tuple[slice, ...]
    columns: tuple[slice, ...]

    def __call__(self, op: Op) -> tuple[slice, slice]:
        """Where the part that `op` works on lies in the batch."""
        return self.rows[op.microbatch], self.columns[op.segment]

    def shape(self, op: Op) -> tuple[int, int]:
        """(B, T) of that part."""
        rows, columns = self(op)
        return rows.stop - rows.start, columns.stop - columns.start


def cut(schedule: Schedule, n_rows: int, n_tokens: int) -> Cut:
    """Cut a batch of `n_rows` sequences of `n_tokens` for `schedule`.

    Micro-batches differ by at most one row, the longer ones first. Raises ValueError where one
    would be empty, or where the segments do not cover the sequence.
    """
    if n_rows < schedule.n_microbatches:
        raise ValueError(
            f"a batch of {n_rows} rows cannot be cut into {schedule.n_microbatches} micro-batches: "
            f"each needs at least one row; use {n_rows} at most, or a larger batch"
        )
    lengths = schedule.segment_tokens or equal_segments(n_tokens, schedule.n_segments)
    if sum(lengths) != n_tokens:
        raise ValueError(
            f"segments of {list(lengths)} tokens make {sum(lengths)}, but the sequences have "
            f"{n_tokens}"
        )
    return Cut(_slices(_even(n_rows, schedule.n_microbatches)), _slices(lengths))


def _even(total: int, n: int) -> list[int]:
    size, longer = divmod(total, n)
    return [size + (i < longer) for i in range(n)]


def _slices(sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0)))
