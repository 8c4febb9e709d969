"""Sends and receives for a schedule, in an order that cannot deadlock (chapter 2).

A *synchronous* send returns only when the receiver has taken the message; gloo's `send` is one,
whatever the size. If two ranks send to each other first, both wait for ever. `program` places
every send and its receive as one event of a single global order. Each rank then follows its part
of that order, so the earliest event not yet done can always be done, and nothing deadlocks.

A runtime may post receives earlier than their place here, and send asynchronously as long as it
keeps the handles: the order of messages on each link stays the same.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvpipe.pipeline.ops import Op, Schedule, output
from kvpipe.pipeline.simulator import Comm, Cost, simulate
from kvpipe.pipeline.timeline import Span, Timeline, Transfer


class Send(NamedTuple):
    """Give the output `op` (kind F: hidden states or tokens, I: a gradient) to `target`."""

    op: Op
    target: int

    def __str__(self) -> str:
        return f"send {self.op} to rank {self.target}"


class Recv(NamedTuple):
    """Take the output `op` from `source`."""

    op: Op
    source: int

    def __str__(self) -> str:
        return f"receive {self.op} from rank {self.source}"


Program = tuple[tuple[Op | Send | Recv, ...], ...]  # rank -> instructions


def program(schedule: Schedule) -> Program:
    """Each rank's operations with its sends and receives, safe under synchronous sends.

    The global order is that of simulated time: an operation enters when it starts, its message
    leaves when it ends, and messages go before the operations that start at the same moment.
    """
    events: list[tuple[float, int, int, Op]] = []
    for rank, spans in enumerate(simulate(schedule, Cost.of(schedule)).spans):
        for op, start, end in spans:
            events.append((start, 1, rank, op))
            if schedule.receiver(op) is not None:
                events.append((end, 0, rank, op))
    instructions: list[list[Op | Send | Recv]] = [[] for _ in schedule.order]
    for _, starts, rank, op in sorted(events):
        if starts:
            instructions[rank].append(op)
        else:
            message, target = output(op), schedule.receiver(op)
            instructions[rank].append(Send(message, target))
            instructions[target].append(Recv(message, rank))
    return tuple(map(tuple, instructions))


def just_in_time_program(schedule: Schedule) -> Program:
    """The order one writes first: receive right before use, send right after computing.

    It deadlocks under synchronous sends as soon as two ranks send to each other at once, as
    they do in 1F1B. It is here to be compared with `program`.
    """
    instructions: list[list[Op | Send | Recv]] = [[] for _ in schedule.order]
    for rank, order in enumerate(schedule.order):
        for op in order:
            sources = [(need, schedule.placement[need.chunk]) for need in schedule.needs(op)]
            instructions[rank] += [Recv(need, s) for need, s in sources if s != rank]
            instructions[rank].append(op)
            target = schedule.receiver(op)
            if target is not None:
                instructions[rank].append(Send(output(op), target))
    return tuple(map(tuple, instructions))


def run_synchronously(
    schedule: Schedule,
    instructions: Program | None = None,
    cost: Callable[[Op], float] | None = None,
    comm: Comm | None = None,
) -> Timeline:
    """Simulate a program in which a send and its receive wait for each other.

    Both ranks are occupied during the transfer. Raises ValueError if the ranks come to stand
    still, and says before which instruction each one stands.
    """
    instructions = program(schedule) if instructions is None else instructions
    run = _Meeting(schedule, instructions, cost or Cost.of(schedule), comm or Comm())
    runnable = deque(range(len(instructions)))
    while runnable:
        runnable.extend(run.advance(runnable.popleft()))
    if any(run.head(rank) is not None for rank in range(len(instructions))):
        raise ValueError(run.explain())
    return Timeline(schedule, tuple(map(tuple, run.spans)), tuple(run.transfers))


class _Meeting:
    """The state of a synchronous run: per rank a position, a clock and its spans."""

    def __init__(
        self,
        schedule: Schedule,
        instructions: Program,
        cost: Callable[[Op], float],
        comm: Comm,
    ) -> None:
        self.schedule, self.instructions, self.cost, self.comm = schedule, instructions, cost, comm
        self.shares = schedule.segment_shares()
        self.position = [0] * len(instructions)
        self.clock = [0.0] * len(instructions)
        self.spans: list[list[Span]] = [[] for _ in instructions]
        self.transfers: list[Transfer] = []
        self.known: list[set[Op]] = [set() for _ in instructions]

    def head(self, rank: int) -> Op | Send | Recv | None:
        """The instruction before which `rank` stands, None at the end."""
        instructions, position = self.instructions[rank], self.position[rank]
        return instructions[position] if position < len(instructions) else None

    def advance(self, rank: int) -> list[int]:
        """Run `rank` as far as it can go; return the partners whose message it completed."""
        met = []
        while (head := self.head(rank)) is not None:
            if isinstance(head, Op):
                if any(need not in self.known[rank] for need in self.schedule.needs(head)):
                    break
                self.compute(rank, head)
            elif self.meet(rank, head):
                met.append(head.target if isinstance(head, Send) else head.source)
            else:
                break
        return met

    def compute(self, rank: int, op: Op) -> None:
        start = self.clock[rank]
        self.clock[rank] = start + self.cost(op)
        self.spans[rank].append(Span(op, start, self.clock[rank]))
        self.known[rank].add(output(op))
        self.position[rank] += 1

    def meet(self, rank: int, head: Send | Recv) -> bool:
        if isinstance(head, Send):
            source, target, partner, wanted = rank, head.target, head.target, Recv(head.op, rank)
        else:
            source, target, partner, wanted = head.source, rank, head.source, Send(head.op, rank)
        if self.head(partner) != wanted or head.op not in self.known[source]:
            return False
        n_bytes = self.comm.n_bytes(self.schedule, head.op, self.shares)
        start = max(self.clock[source], self.clock[target])
        end = start + self.comm.latency + n_bytes / self.comm.bandwidth
        self.transfers.append(Transfer(head.op, source, target, start, end, n_bytes))
        self.clock[source] = self.clock[target] = end
        self.position[source] += 1
        self.position[target] += 1
        self.known[target].add(head.op)
        return True

    def explain(self) -> str:
        heads: Sequence[tuple[int, Op | Send | Recv | None]] = [
            (rank, self.head(rank)) for rank in range(len(self.instructions))
        ]
        standing = [
            f"rank {rank} stands before: {head}" for rank, head in heads if head is not None
        ]
        return f"{self.schedule.name} deadlocks under synchronous sends: " + "; ".join(standing)
