"""When every operation of a schedule starts and ends, given what operations and transfers cost.

A discrete-event simulation (chapter 2): a rank runs its operations in order, each as soon as the
rank is free and the outputs it needs have arrived. Times are in whatever unit the costs are in.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from kvpipe.pipeline.ops import Op, Schedule, output
from kvpipe.pipeline.timeline import Span, Timeline, Transfer


@dataclass(frozen=True)
class Cost:
    """The time of each operation, as a table of chunk times and segment shares."""

    forward: tuple[float, ...]  # chunk -> time of a whole micro-batch
    input_grad: tuple[float, ...]
    weight_grad: tuple[float, ...]
    shares: tuple[float, ...]  # segment -> part of the micro-batch's time

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        forward: float = 1.0,
        input_grad: float = 1.0,
        weight_grad: float = 1.0,
        weights: Sequence[float] | None = None,
        shares: Sequence[float] | None = None,
    ) -> "Cost":
        """Times for one rank's worth of layers, spread evenly over the rank's chunks.

        A backward costs input_grad + weight_grad: the defaults are the usual F = 1, B = 2.
        `weights` makes chunks unequal: [2, 1, 1, 1] doubles every time of the first. `shares`
        are the segments' parts of the time, by default those of their tokens.
        """
        weights = tuple(weights) if weights is not None else (1.0,) * schedule.n_chunks
        shares = tuple(shares) if shares is not None else schedule.segment_shares()
        _same(len(weights), schedule.n_chunks, "weights", "chunk")
        _same(len(shares), schedule.n_segments, "shares", "segment")
        if min(forward, input_grad, weight_grad, *weights, *shares) < 0:
            raise ValueError("times, weights and shares must not be negative")
        v = schedule.n_chunks / schedule.n_ranks
        return cls(
            tuple(forward * w / v for w in weights),
            tuple(input_grad * w / v for w in weights),
            tuple(weight_grad * w / v for w in weights),
            shares,
        )

    def __call__(self, op: Op) -> float:
        kind, _, chunk, segment = op
        if kind == "F":
            time = self.forward[chunk]
        elif kind == "I":
            time = self.input_grad[chunk]
        elif kind == "W":
            time = self.weight_grad[chunk]
        else:
            time = self.input_grad[chunk] + self.weight_grad[chunk]
        return time * self.shares[segment]


@dataclass(frozen=True)
class Comm:
    """What a transfer between two ranks costs. Transfers inside a rank are free."""

    latency: float = 0.0  # time of a message of no bytes
    bandwidth: float = inf  # bytes per unit of time, per direction of a link
    activation_bytes: float = 0.0  # one micro-batch between two chunks, and its gradient
    token_bytes: float = 0.0  # the sampled tokens of one decoding step
    overlaps: bool = True  # False: the sender waits until its message has arrived

    def __post_init__(self) -> None:
        if min(self.latency, self.activation_bytes, self.token_bytes) < 0 or self.bandwidth <= 0:
            raise ValueError(f"latency and bytes must be at least 0, bandwidth above 0: {self}")

    def n_bytes(self, schedule: Schedule, op: Op, shares: Sequence[float]) -> float:
        """The size of the message that carries `op`'s output."""
        if schedule.returns_token(op):
            return self.token_bytes
        return self.activation_bytes * shares[op.segment]


def simulate(
    schedule: Schedule,
    cost: Callable[[Op], float] | None = None,
    comm: Comm | None = None,
) -> Timeline:
    """Run `schedule` in simulated time.

    `cost` gives the time of an operation: a `Cost`, or any function, for instance of measured
    times. Messages between two ranks leave one after the other, in the order they were made.
    Where `comm.overlaps`, sending and receiving cost the ranks no time of their own.
    """
    cost = cost or Cost.of(schedule)
    run = _Run(schedule, cost, comm or Comm())
    runnable = deque(range(schedule.n_ranks))
    while runnable:
        runnable.extend(run.advance(runnable.popleft()))
    if run.waiting:
        raise ValueError(explain_stall(schedule, [len(spans) for spans in run.spans]))
    return Timeline(schedule, tuple(map(tuple, run.spans)), tuple(run.transfers))


class _Run:
    """The state of one simulation: clocks, finished outputs, and ranks that wait for one."""

    def __init__(self, schedule: Schedule, cost: Callable[[Op], float], comm: Comm) -> None:
        self.schedule, self.cost, self.comm = schedule, cost, comm
        self.shares = schedule.segment_shares()
        self.clock = [0.0] * schedule.n_ranks
        self.spans: list[list[Span]] = [[] for _ in schedule.order]
        self.transfers: list[Transfer] = []
        self.ended: dict[Op, float] = {}  # output -> when its own rank has it
        self.arrived: dict[Op, float] = {}  # output -> when the receiving rank has it
        self.link_free: dict[tuple[int, int], float] = {}
        self.waiting: dict[Op, list[int]] = {}  # output -> ranks that stand still for it

    def advance(self, rank: int) -> list[int]:
        """Run `rank` until it must wait; return the ranks that this has set free."""
        schedule, cost, spans = self.schedule, self.cost, self.spans[rank]
        order, needs, freed = schedule.order[rank], schedule.needs, []
        for index in range(len(spans), len(order)):
            op = order[index]
            start = self.clock[rank]
            for need in needs(op):
                known = self.ended if schedule.placement[need.chunk] == rank else self.arrived
                if need not in known:
                    self.waiting.setdefault(need, []).append(rank)
                    return freed
                start = max(start, known[need])
            end = self.clock[rank] = start + cost(op)
            spans.append(Span(op, start, end))
            result = output(op)
            if result is not None:
                self.ended[result] = end
                receiver = schedule.receiver(result)
                if receiver is not None:
                    self.send(result, rank, receiver, end)
                freed += self.waiting.pop(result, ())
        return freed

    def send(self, result: Op, source: int, target: int, ready: float) -> None:
        comm, link = self.comm, (source, target)
        n_bytes = comm.n_bytes(self.schedule, result, self.shares)
        start = max(ready, self.link_free.get(link, 0.0))
        self.link_free[link] = start + n_bytes / comm.bandwidth
        end = self.arrived[result] = self.link_free[link] + comm.latency
        self.transfers.append(Transfer(result, source, target, start, end, n_bytes))
        if not comm.overlaps:
            self.clock[source] = end


def explain_stall(schedule: Schedule, positions: Sequence[int]) -> str:
    """Why no rank can go on, when rank r has run its first positions[r] operations."""
    done: set[Op | None] = set()
    ahead: dict[Op | None, int] = {}
    for rank, (order, n) in enumerate(zip(schedule.order, positions, strict=True)):
        done.update(map(output, order[:n]))
        ahead.update((output(op), rank) for op in order[n:])
    lines = []
    for rank, (order, n) in enumerate(zip(schedule.order, positions, strict=True)):
        if n < len(order):
            missing = [
                f"{need} ({f'still ahead on rank {ahead[need]}' if need in ahead else 'never run'})"
                for need in schedule.needs(order[n])
                if need not in done
            ]
            lines.append(f"rank {rank} stands before {order[n]} and needs {', '.join(missing)}")
    return f"{schedule.name} cannot finish: " + "; ".join(lines)


def _same(got: int, expected: int, what: str, each: str) -> None:
    if got != expected:
        raise ValueError(f"one of {what} per {each}: expected {expected}, got {got}")
