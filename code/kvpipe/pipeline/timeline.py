"""What a simulated or measured pipeline step looked like: spans in time, and the numbers read off.

Three different quantities are called "the bubble". They have names here, and there is no
default:

- `bubble/ideal`: idle time over busy time (Megatron-LM; (P - 1) / M for 1F1B);
- `bubble/makespan`: idle time over all time ((P - 1) / (M + P - 1) for 1F1B);
- `per-stage span`: idle time between a rank's own first start and last end, over the longest
  such span (zero-bubble papers). It leaves out the skewed start and end, so a schedule whose
  bubble is 0 here still has a makespan above its work.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from kvpipe.pipeline.ops import Op, Schedule

METRICS = ("bubble/ideal", "bubble/makespan", "per-stage span")


class Span(NamedTuple):
    """One operation in time."""

    op: Op
    start: float
    end: float


class Transfer(NamedTuple):
    """One message between two ranks in time; `op` is the output it carries."""

    op: Op
    source: int
    target: int
    start: float
    end: float
    n_bytes: float


@dataclass(frozen=True)
class Timeline:
    """Every operation and every transfer of one step, with start and end."""

    schedule: Schedule
    spans: tuple[tuple[Span, ...], ...]  # rank -> spans in order
    transfers: tuple[Transfer, ...]

    @cached_property
    def makespan(self) -> float:
        """From the first start on any rank to the last end."""
        starts = [spans[0].start for spans in self.spans if spans]
        return max(spans[-1].end for spans in self.spans if spans) - min(starts)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Time each rank computes. Sending and waiting do not count."""
        return tuple(sum(end - start for _, start, end in spans) for spans in self.spans)

    @cached_property
    def idle(self) -> tuple[float, ...]:
        """Time each rank does not compute, out of the makespan."""
        return tuple(self.makespan - busy for busy in self.busy)

    @cached_property
    def rank_spans(self) -> tuple[float, ...]:
        """From each rank's own first start to its own last end."""
        return tuple(spans[-1].end - spans[0].start if spans else 0.0 for spans in self.spans)

    def bubble(self, metric: str) -> float:
        """The bubble over all ranks under a named metric, see the top of this module."""
        if metric not in METRICS:
            raise ValueError(f"unknown bubble metric {metric!r}; choose one of {METRICS}")
        busy, n_ranks = sum(self.busy), len(self.spans)
        if metric == "bubble/ideal":
            return (n_ranks * self.makespan - busy) / busy
        window = self.makespan if metric == "bubble/makespan" else max(self.rank_spans)
        return 1 - busy / (n_ranks * window)

    @cached_property
    def peak_activations(self) -> tuple[float, ...]:
        """Per rank, in micro-batches through one chunk; see `peak_activations` for bytes."""
        return peak_activations(self.schedule)

    @cached_property
    def bytes_moved(self) -> float:
        return sum(transfer.n_bytes for transfer in self.transfers)

    @cached_property
    def bytes_by_link(self) -> dict[tuple[int, int], float]:
        """(source, target) -> bytes."""
        links: dict[tuple[int, int], float] = {}
        for transfer in self.transfers:
            link = transfer.source, transfer.target
            links[link] = links.get(link, 0) + transfer.n_bytes
        return links

    @cached_property
    def span_of(self) -> dict[Op, Span]:
        """Op -> its span."""
        return {span.op: span for spans in self.spans for span in spans}


def peak_activations(
    schedule: Schedule,
    chunk_sizes: tuple[float, ...] | None = None,
    kept_for_weights: float = 1.0,
) -> tuple[float, ...]:
    """The most activation memory each rank holds at once. Only the order matters, not the times.

    A forward stores its chunk's activations until the backward has used them. After a separate
    input gradient the part `kept_for_weights` stays until the weight gradient. `chunk_sizes`
    gives each chunk's activations of one micro-batch (bytes, for instance); by default every
    chunk counts 1. Inference keeps nothing beyond the running operation.
    """
    sizes = chunk_sizes or (1.0,) * schedule.n_chunks
    if len(sizes) != schedule.n_chunks:
        raise ValueError(f"{schedule.n_chunks} chunks need as many sizes, got {len(sizes)}")
    shares = schedule.segment_shares()
    after = {"B": -1.0, "I": kept_for_weights - 1, "W": -kept_for_weights}
    peaks = []
    for order in schedule.order:
        # Exact sums would need fractions; what is left of rounding is far below one segment.
        held = peak = 0.0
        for op in order:
            size = sizes[op.chunk] * shares[op.segment]
            if op.kind == "F":
                peak = max(peak, held + size)
                held += size if schedule.trains else 0
            else:
                held += after[op.kind] * size
        peaks.append(peak)
    return tuple(peaks)
