"""Measured runs in the same form as simulated ones, so that both can be drawn and compared.

Chapter 2. `measured_timeline` joins the reports of all ranks; `measured_cost` turns timelines
into the cost of every operation, for `kvpipe.pipeline.simulate`. Clocks of processes on one
machine agree; between machines they do not, and only differences within a rank mean anything.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from kvpipe.pipeline.ops import Op, Schedule
from kvpipe.pipeline.timeline import Span, Timeline, Transfer


class Report(Protocol):
    """What a rank tells after a run: `runtime.StepReport` or `decode.DecodeReport`."""

    spans: tuple[Span, ...]
    sent: tuple[Transfer, ...]
    arrived: dict[Op, float]


def measured_timeline(schedule: Schedule, reports: Sequence[Report]) -> Timeline:
    """One timeline, in seconds from the first start, of what the ranks report.

    Its schedule has the order that was really run: decoding leaves out what had become
    unnecessary. A transfer ends when the receiver found the message to be there, which may be
    long after it arrived.
    """
    zero = min(report.spans[0].start for report in reports if report.spans)
    spans = tuple(
        tuple(Span(op, start - zero, end - zero) for op, start, end in report.spans)
        for report in reports
    )
    transfers = [
        transfer._replace(
            start=transfer.start - zero,
            end=reports[transfer.target].arrived.get(transfer.op, transfer.start) - zero,
        )
        for report in reports
        for transfer in report.sent
    ]
    order = tuple(tuple(span.op for span in rank) for rank in spans)
    return Timeline(replace(schedule, order=order), spans, tuple(transfers))


def measured_cost(timelines: Sequence[Timeline]) -> Callable[[Op], float]:
    """Seconds of an operation: the median over all measured ones of its kind, chunk and segment.

    Leave the first step out: it pays for memory that later steps reuse.
    """
    samples: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for timeline in timelines:
        for rank in timeline.spans:
            for op, start, end in rank:
                samples[op.kind, op.chunk, op.segment].append(end - start)
    medians = {key: statistics.median(times) for key, times in samples.items()}
    return lambda op: medians[op.kind, op.chunk, op.segment]
