"""Decoding over a pipeline, with several batches in flight (chapter 2).

Each rank runs its part of `kvpipe.pipeline.round_robin`. Hidden states go from rank to rank; the
last rank samples, once, and sends the token to all others: the first needs it as input, every one
needs it to know which batch is finished. An operation of a slot that has run empty is left out, on
every rank alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.cache import KVCache
from kvpipe.generate import check_options, left_pad, pick_tokens
from kvpipe.pipeline.agreement import check_stages, gather, same
from kvpipe.pipeline.batching import Batch, Request, Slots, check_batches
from kvpipe.pipeline.messages import Mailbox
from kvpipe.pipeline.ops import Op
from kvpipe.pipeline.schedules import round_robin
from kvpipe.pipeline.timeline import Span, Transfer
from kvpipe.transformer import Stage


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen; temperature 0 takes the likeliest. As in `kvpipe.generate.stream`."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None  # every batch starts from it


@dataclass(frozen=True)
class DecodeReport:
    """What one rank did. Times are seconds of `time.perf_counter`."""

    tokens: list[list[list[int]]]  # batch -> request -> new tokens, the same on every rank
    spans: tuple[Span, ...]  # its operations; microbatch is the slot, segment the slot's step
    sent: tuple[Transfer, ...]  # its messages; each `end` is still its start
    arrived: dict[Op, float]  # when each message to this rank was found to be here
    peak_cache_bytes: int  # most bytes of keys and values held at once

    @property
    def n_tokens(self) -> int:
        return sum(len(new) for batch in self.tokens for new in batch)

    @property
    def sent_bytes(self) -> int:
        return int(sum(transfer.n_bytes for transfer in self.sent))


def decode(
    group: dist.ProcessGroup,
    stage: Stage,
    batches: Sequence[Sequence[Request]],
    n_in_flight: int | None = None,
    sampling: Sampling | None = None,
    *,
    sends_kept: int = 8,
    timeout_s: float | None = None,
) -> DecodeReport:
    """Answer all requests, `n_in_flight` batches at a time (by default all).

    Every rank calls it with its own `stage` and the same batches. A batch whose requests are all
    finished gives its slot to the next one that waits. Raises ValueError, on all ranks alike, for
    stages that do not make one model and for requests that differ or cannot be decoded.
    """
    sampling = sampling or Sampling()
    check_options(1, sampling.temperature, sampling.top_k, sampling.top_p)
    n_slots = len(batches) if n_in_flight is None else n_in_flight
    check_batches(batches, n_slots, stage.config.vocab_size, stage.config.context)
    check_stages(group, round_robin(group.size(), n_slots), {group.rank(): stage})
    same(gather(group, hash(tuple(map(tuple, batches)))), "the requests (digest)")
    mailbox = Mailbox(group, next(stage.parameters()).device, sends_kept, timeout_s)
    return _Decoding(mailbox, stage, Slots(batches, n_slots), sampling).run()


@dataclass
class Memory:
    """What a rank remembers of the batch in one slot."""

    cache: KVCache
    tokens: Tensor  # (B, T) of the next step; the first rank's input
    positions: Tensor  # (B, T)
    generator: torch.Generator | None


class _Decoding:
    """The state of one rank."""

    def __init__(self, mailbox: Mailbox, stage: Stage, slots: Slots, sampling: Sampling) -> None:
        self.mailbox, self.stage, self.slots, self.sampling = mailbox, stage, slots, sampling
        self.rank, self.n_ranks = mailbox.rank, mailbox.group.size()
        # One step more than any slot can need: there the last tokens are accepted.
        self.schedule = round_robin(self.n_ranks, len(slots.in_flight), slots.most_steps() + 1)
        self.memory: dict[int, Memory] = {}
        self.sampled: dict[Op, Tensor] = {}  # on the last rank: tokens not yet accepted
        self.dtype = next(stage.parameters()).dtype
        self.spans: list[Span] = []
        self.peak_cache_bytes = 0

    @torch.inference_mode()
    def run(self) -> DecodeReport:
        for op in self.schedule.order[self.rank]:
            self.accept(op)
            if self.slots.is_finished:
                break
            batch = self.slots.in_flight[op.microbatch]
            if batch is not None:
                self.compute(op, batch)
        self.mailbox.flush()
        return DecodeReport(
            tokens=[batch.new_tokens for batch in self.slots.batches],
            spans=tuple(self.spans),
            sent=tuple(self.mailbox.sent),
            arrived=self.mailbox.arrived,
            peak_cache_bytes=self.peak_cache_bytes,
        )

    def accept(self, op: Op) -> None:
        """Before the next step of a slot: take the tokens of its last, and see what they end."""
        slot, step = op.microbatch, op.segment
        if step == 0 or self.slots.in_flight[slot] is None:
            return
        tokens = self.take(self.token_of(slot, step - 1))
        if self.slots.accept(slot, tokens.tolist()):
            del self.memory[slot]
        else:
            memory = self.memory[slot]
            memory.tokens, memory.positions = tokens[:, None], memory.positions[:, -1:] + 1

    def compute(self, op: Op, batch: Batch) -> None:
        memory = self.memory.get(op.microbatch) or self.start(op.microbatch, batch)
        x = memory.tokens if self.rank == 0 else self.receive(op, memory.positions)
        start = time.perf_counter()
        out = self.stage(x, memory.positions, memory.cache, n_logits=1)
        if self.rank == self.n_ranks - 1:
            s = self.sampling
            out = pick_tokens(out[:, -1], s.temperature, s.top_k, s.top_p, memory.generator)[:, 0]
        if out.device.type == "cuda":
            torch.cuda.synchronize(out.device)
        self.spans.append(Span(op, start, time.perf_counter()))
        self.pass_on(op, out)
        held = sum(memory.cache.nbytes for memory in self.memory.values())
        self.peak_cache_bytes = max(self.peak_cache_bytes, held)

    def start(self, slot: int, batch: Batch) -> Memory:
        """An empty memory for a batch that begins: its prompts, padded on the left."""
        device = self.mailbox.device
        tokens, positions = left_pad([request.prompt for request in batch.requests], device=device)
        longest = tokens.shape[1] + max(request.max_new_tokens for request in batch.requests)
        seed, generator = self.sampling.seed, None
        if seed is not None:
            generator = torch.Generator(device).manual_seed(seed)
        self.memory[slot] = Memory(KVCache(longest), tokens, positions, generator)
        return self.memory[slot]

    def receive(self, op: Op, positions: Tensor) -> Tensor:
        """The hidden states from the rank before."""
        before = op._replace(chunk=op.chunk - 1)
        shape = (*positions.shape, self.stage.config.width)
        self.mailbox.post(before, self.rank - 1, shape, self.dtype)
        return self.mailbox.take(before)

    def pass_on(self, op: Op, out: Tensor) -> None:
        """Hidden states go to the next rank; tokens go to all others, who expect them already."""
        last = self.n_ranks - 1
        if self.rank < last:
            self.mailbox.send(op, out, self.rank + 1)
            tokens = self.token_of(op.microbatch, op.segment)
            self.mailbox.post(tokens, last, out.shape[:1], torch.int64)
            return
        self.sampled[op] = out
        for rank in range(last):
            self.mailbox.send(op, out, rank)

    def token_of(self, slot: int, step: int) -> Op:
        """The output that carries the tokens of a step: the last chunk's."""
        return Op("F", slot, self.n_ranks - 1, step)

    def take(self, op: Op) -> Tensor:
        return self.sampled.pop(op) if op in self.sampled else self.mailbox.take(op)
