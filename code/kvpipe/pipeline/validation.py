"""Is a schedule one that every rank can run to the end, with all the work done once (chapter 2)?"""

from collections import Counter

from kvpipe.pipeline.exchange import Program, run_synchronously
from kvpipe.pipeline.ops import KINDS, Op, Schedule
from kvpipe.pipeline.simulator import simulate


def validate(schedule: Schedule, instructions: Program | None = None) -> None:
    """Raise ValueError, with the reason, unless `schedule` is correct and cannot deadlock.

    Every micro-batch goes forward and backward exactly once through every chunk, on the rank
    that holds it; all dependencies are met in the given order; and sends and receives (those of
    `instructions`, or of `kvpipe.pipeline.program`) finish under synchronous sends.
    """
    _check_shape(schedule)
    for rank, order in enumerate(schedule.order):
        for op in order:
            _check_op(schedule, rank, op)
    _check_once(schedule)
    simulate(schedule)  # raises where an operation can never start
    timeline = run_synchronously(schedule, instructions)
    ran = tuple(tuple(span.op for span in spans) for spans in timeline.spans)
    if ran != schedule.order:
        raise ValueError(f"the program computes something else than the order of {schedule.name}")


def _check_shape(schedule: Schedule) -> None:
    if min(schedule.n_microbatches, schedule.n_segments, schedule.n_chunks) < 1:
        raise ValueError(f"{schedule.name} needs a micro-batch, a segment and a chunk at least")
    if set(schedule.placement) != set(range(schedule.n_ranks)):
        raise ValueError(
            f"{schedule.name} places chunks on ranks {sorted(set(schedule.placement))}, "
            f"but has ranks 0 to {schedule.n_ranks - 1}; each needs one chunk at least"
        )
    if schedule.segment_tokens and len(schedule.segment_tokens) != schedule.n_segments:
        raise ValueError(
            f"{schedule.n_segments} segments, but {len(schedule.segment_tokens)} lengths"
        )


def _check_op(schedule: Schedule, rank: int, op: Op) -> None:
    if op.kind not in KINDS:
        raise ValueError(f"{op} on rank {rank}: kind {op.kind!r} is none of {', '.join(KINDS)}")
    if not schedule.trains and op.kind != "F":
        raise ValueError(f"{op} on rank {rank}: {schedule.name} does not train")
    limits = {
        "microbatch": schedule.n_microbatches,
        "chunk": schedule.n_chunks,
        "segment": schedule.n_segments,
    }
    for field, limit in limits.items():
        if not 0 <= getattr(op, field) < limit:
            raise ValueError(
                f"{op} on rank {rank}: {field} {getattr(op, field)} is not in 0 to {limit - 1}"
            )
    if schedule.placement[op.chunk] != rank:
        raise ValueError(
            f"{op} on rank {rank}: chunk {op.chunk} lives on rank {schedule.placement[op.chunk]}"
        )


def _check_once(schedule: Schedule) -> None:
    """One F per (micro-batch, chunk, segment); when training also one B, or one I and one W."""
    times = Counter(op for order in schedule.order for op in order)
    allowed = [{"F": 1, "B": 1}, {"F": 1, "I": 1, "W": 1}] if schedule.trains else [{"F": 1}]
    for microbatch in range(schedule.n_microbatches):
        for chunk in range(schedule.n_chunks):
            for segment in range(schedule.n_segments):
                found = {
                    kind: n for kind in KINDS if (n := times[Op(kind, microbatch, chunk, segment)])
                }
                if found not in allowed:
                    raise ValueError(
                        f"micro-batch {microbatch}, chunk {chunk}, segment {segment} is run "
                        f"{found or 'never'}; expected {' or '.join(map(str, allowed))}"
                    )
