"""Pipeline parallelism (chapter 2): schedules as data, and the simulator that predicts them.

Nothing here imports torch. `Schedule` is the one object that is drawn, simulated, validated
and executed.
"""

from kvpipe.pipeline.exchange import (
    Program,
    Recv,
    Send,
    just_in_time_program,
    program,
    run_synchronously,
)
from kvpipe.pipeline.ops import KINDS, Op, Schedule, output
from kvpipe.pipeline.schedules import (
    BUILDERS,
    build,
    gpipe,
    interleaved_1f1b,
    loop,
    one_f_one_b,
    round_robin,
    seq1f1b,
    v_shape,
    zb_h1,
    zbv,
)
from kvpipe.pipeline.segments import equal_segments, equal_work_segments, segment_work
from kvpipe.pipeline.simulator import Comm, Cost, simulate
from kvpipe.pipeline.timeline import METRICS, Span, Timeline, Transfer, peak_activations
from kvpipe.pipeline.validation import validate

__all__ = [
    "BUILDERS",
    "KINDS",
    "METRICS",
    "Comm",
    "Cost",
    "Op",
    "Program",
    "Recv",
    "Schedule",
    "Send",
    "Span",
    "Timeline",
    "Transfer",
    "build",
    "equal_segments",
    "equal_work_segments",
    "gpipe",
    "interleaved_1f1b",
    "just_in_time_program",
    "loop",
    "one_f_one_b",
    "output",
    "peak_activations",
    "program",
    "round_robin",
    "run_synchronously",
    "segment_work",
    "seq1f1b",
    "simulate",
    "v_shape",
    "validate",
    "zb_h1",
    "zbv",
]
