"""Operations and schedules as plain data: what each rank computes, in which order (chapter 2).

A model is cut into *chunks*: contiguous runs of layers, numbered in model order. Every rank
holds one chunk or several; `Schedule.placement` says which. A batch is cut into micro-batches,
and a micro-batch may be cut again along the sequence, into segments. One operation is then
(kind, micro-batch, chunk, segment), and a schedule is one ordered list of operations per rank.

Everything else follows from that list: what must be finished before an operation may start
(`Schedule.needs`), and where its result goes (`Schedule.receiver`). No tensors, no processes.
"""

from dataclasses import dataclass
from typing import NamedTuple

KINDS = {
    "F": "forward",
    "B": "backward (input and weight gradient together)",
    "I": "input gradient",
    "W": "weight gradient",
}


class Op(NamedTuple):
    """One operation of one rank. A tuple, because the simulator hashes a million of them."""

    kind: str  # F, B, I or W
    microbatch: int
    chunk: int  # index in model order; the rank is Schedule.placement[chunk]
    segment: int = 0  # slice of the sequence in training, step in decoding

    def __str__(self) -> str:
        """`2F0` is the forward of micro-batch 0 through chunk 2; `2F0.1` its segment 1."""
        return f"{self.chunk}{self.kind}{self.microbatch}" + (
            f".{self.segment}" if self.segment else ""
        )


def output(op: Op) -> Op | None:
    """The name under which an op's result is known to others: F, or I for both B and I.

    A weight gradient stays where it is, so W has no output.
    """
    if op.kind == "B":
        return Op("I", op.microbatch, op.chunk, op.segment)
    return None if op.kind == "W" else op


@dataclass(frozen=True)
class Schedule:
    """The order of operations on every rank, and where each chunk lives."""

    name: str
    n_microbatches: int
    placement: tuple[int, ...]  # chunk -> rank
    order: tuple[tuple[Op, ...], ...]  # rank -> its operations, first to last
    n_segments: int = 1
    segment_tokens: tuple[int, ...] = ()  # length of each segment; empty: not fixed here
    trains: bool = True  # has backward operations
    feeds_back: bool = False  # the last chunk's token is the first chunk's next input

    @property
    def n_ranks(self) -> int:
        return len(self.order)

    @property
    def n_chunks(self) -> int:
        return len(self.placement)

    def chunks(self, rank: int) -> tuple[int, ...]:
        """The chunks that `rank` holds, in model order."""
        return tuple(c for c, owner in enumerate(self.placement) if owner == rank)

    @property
    def chunks_per_rank(self) -> int:
        """The largest number of chunks on one rank."""
        return max(len(self.chunks(rank)) for rank in range(self.n_ranks))

    def segment_shares(self) -> tuple[float, ...]:
        """The part of a micro-batch's tokens in each segment; every decoding step counts 1."""
        if self.segment_tokens:
            total = sum(self.segment_tokens)
            return tuple(tokens / total for tokens in self.segment_tokens)
        return (1.0 if self.feeds_back else 1 / self.n_segments,) * self.n_segments

    def needs(self, op: Op) -> list[Op]:
        """The outputs that must exist before `op` may start."""
        kind, microbatch, chunk, segment = op
        last = len(self.placement) - 1
        if kind == "F":
            needed = [Op("F", microbatch, chunk - 1, segment)] if chunk > 0 else []
            if segment > 0:
                if chunk == 0 and self.feeds_back:
                    needed.append(Op("F", microbatch, last, segment - 1))
                # Attention reads the keys and values of the earlier segments.
                needed.append(Op("F", microbatch, chunk, segment - 1))
            return needed
        if kind == "W":
            return [Op("I", microbatch, chunk, segment)]
        needed = [Op("F", microbatch, chunk, segment)]
        if chunk < last:
            needed.append(Op("I", microbatch, chunk + 1, segment))
        if segment < self.n_segments - 1:
            # Later segments attended to this one; their gradients reach its keys and values.
            needed.append(Op("I", microbatch, chunk, segment + 1))
        return needed

    def next_chunk(self, op: Op) -> int | None:
        """The chunk that uses `op`'s result next, or None if no other chunk does."""
        kind, _, chunk, segment = op
        if kind == "F":
            if chunk < len(self.placement) - 1:
                return chunk + 1
            return 0 if self.feeds_back and segment < self.n_segments - 1 else None
        return chunk - 1 if kind != "W" and chunk > 0 else None

    def receiver(self, op: Op) -> int | None:
        """The other rank that `op`'s result is sent to, or None if it stays on this rank."""
        chunk = self.next_chunk(op)
        if chunk is None:
            return None
        rank = self.placement[chunk]
        return None if rank == self.placement[op.chunk] else rank

    def returns_token(self, op: Op) -> bool:
        """Whether `op`'s result is a sampled token on its way back to the first chunk."""
        return self.feeds_back and op.kind == "F" and op.chunk == self.n_chunks - 1
