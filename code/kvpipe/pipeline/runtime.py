"""One rank's part of a training step: a schedule, executed on a process group (chapter 2).

The instructions come from `kvpipe.pipeline.program`, the arithmetic from `compute`, the messages
from `messages`. Here they meet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kvpipe.pipeline.agreement import check_batch, check_stages
from kvpipe.pipeline.compute import Chunk
from kvpipe.pipeline.exchange import Recv, Send, program
from kvpipe.pipeline.loss import Loss, n_targets, summed_cross_entropy
from kvpipe.pipeline.messages import Mailbox
from kvpipe.pipeline.ops import Op, Schedule, output
from kvpipe.pipeline.parts import cut
from kvpipe.pipeline.stages import Stages, share_tied
from kvpipe.pipeline.tied import sums_tied_gradients
from kvpipe.pipeline.timeline import Span, Transfer
from kvpipe.pipeline.validation import validate


@dataclass(frozen=True)
class StepReport:
    """What one rank did in one step. Times are seconds of `time.perf_counter`."""

    loss: float | None  # of the whole batch, on the rank that holds the last chunk
    spans: tuple[Span, ...]  # its operations; waiting is not part of them
    sent: tuple[Transfer, ...]  # its messages; each `end` is still its start
    arrived: dict[Op, float]  # when each message to this rank was found to be here
    tied_bytes: int  # sent for the sum of tied gradients
    peak_parts: int  # most parts held at once, from their forward to the end of their backward
    peak_activation_bytes: int  # most bytes that the held parts kept; 0 unless asked for

    @property
    def sent_bytes(self) -> int:
        return int(sum(transfer.n_bytes for transfer in self.sent))


class Trainer:
    """One rank of a pipeline that trains; `step` is one forward and backward of a whole batch.

    Every rank constructs it with the same schedule, and calls `step` with the same batch. Then
    `grad` holds what a single process computes for the weights of this rank, and any optimizer
    over `parameters()` may follow.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        schedule: Schedule,
        stages: Stages,
        loss: Loss = summed_cross_entropy,
        *,
        posted_ahead: int = 2,  # receives posted before their place in the program
        sends_kept: int = 8,  # sends under way at once before the oldest is waited for
        timeout_s: float | None = None,  # of a single wait; None: the timeout of the group
        counts_activations: bool = False,  # fills StepReport.peak_activation_bytes
        waits_for_gpu: bool = False,  # after every operation, so that spans are true on a GPU
    ) -> None:
        if not schedule.trains:
            raise ValueError(f"{schedule.name} has no backward; decode() runs it")
        validate(schedule)
        check_stages(group, schedule, stages)
        share_tied(stages)
        self.group, self.schedule, self.stages, self.loss = group, schedule, stages, loss
        self.rank = group.rank()
        self.instructions = program(schedule)[self.rank]
        self.receives = tuple(i for i in self.instructions if isinstance(i, Recv))
        self.splits = {op._replace(kind="F") for op in schedule.order[self.rank] if op.kind == "I"}
        weight = next(self.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.width = next(iter(stages.values())).config.width
        # In one NCCL stream, a receive posted early would hold up the sends behind it.
        self.posted_ahead = 0 if "nccl" in dist.get_backend_config(group) else posted_ahead
        self.sends_kept, self.timeout_s = sends_kept, timeout_s
        self.counts_activations, self.waits_for_gpu = counts_activations, waits_for_gpu
        self.has_compared_batch = False

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter of this rank, once."""
        return nn.ModuleList(self.stages.values()).parameters()

    def step(self, tokens: Tensor, targets: Tensor, positions: Tensor | None = None) -> StepReport:
        """Add the gradients of the mean loss over the batch's targets to `grad`.

        `tokens`, `targets` (see `loss.next_tokens`) and `positions` are (B, T); position -1 marks
        padding. The first call makes sure that all ranks were given the same batch.
        """
        if tokens.ndim != 2 or targets.shape != tokens.shape:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} and targets {tuple(targets.shape)} must both be "
                "(B, T)"
            )
        if not self.has_compared_batch:
            check_batch(self.group, tokens, targets)
            self.has_compared_batch = True
        if positions is None:
            positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        return _Step(self, *(t.to(self.device) for t in (tokens, targets, positions))).run()


class _Step:
    """The state of one step on one rank."""

    def __init__(
        self, trainer: Trainer, tokens: Tensor, targets: Tensor, positions: Tensor
    ) -> None:
        self.trainer, self.schedule = trainer, trainer.schedule
        self.tokens, self.targets, self.positions = tokens, targets, positions
        self.cut = cut(self.schedule, *tokens.shape)
        self.n_targets = n_targets(targets)
        self.mailbox = Mailbox(trainer.group, trainer.device, trainer.sends_kept, trainer.timeout_s)
        self.chunks = {
            chunk: Chunk(stage, self.schedule.n_segments, trainer.counts_activations)
            for chunk, stage in trainer.stages.items()
        }
        self.results: dict[Op, Tensor] = {}  # made here, not yet used or sent
        self.n_posted = self.n_due = 0  # of trainer.receives
        self.loss = torch.zeros((), device=trainer.device, dtype=torch.float64)
        self.spans: list[Span] = []
        self.peak_parts = self.peak_activation_bytes = 0

    def run(self) -> StepReport:
        with sums_tied_gradients(self.mailbox, self.schedule, self.trainer.stages):
            for instruction in self.trainer.instructions:
                self.follow(instruction)
            self.mailbox.flush()
        is_last = self.schedule.n_chunks - 1 in self.chunks
        return StepReport(
            self.loss.item() if is_last else None,
            tuple(self.spans),
            tuple(self.mailbox.sent),
            self.mailbox.arrived,
            self.mailbox.exchanged_bytes,
            self.peak_parts,
            self.peak_activation_bytes,
        )

    def follow(self, instruction: Op | Send | Recv) -> None:
        self.post(self.trainer.posted_ahead)
        if isinstance(instruction, Send):
            result = self.results.pop(instruction.op)
            self.mailbox.send(instruction.op, result, instruction.target)
        elif isinstance(instruction, Recv):
            self.n_due += 1
            self.post(0)
        else:
            self.compute(instruction)

    def post(self, ahead: int) -> None:
        """Post every receive that is due, and more while fewer than `ahead` are on their way."""
        receives = self.trainer.receives
        while self.n_posted < len(receives) and (
            self.n_posted < self.n_due or self.mailbox.n_posted < ahead
        ):
            op, source = receives[self.n_posted]
            shape = (*self.cut.shape(op), self.trainer.width)
            self.mailbox.post(op, source, shape, self.trainer.dtype)
            self.n_posted += 1

    def compute(self, op: Op) -> None:
        given = self.input(op)
        start = time.perf_counter()
        if op.kind == "F":
            result = self.forward(op, given)
        elif op.kind == "W":
            result = self.chunks[op.chunk].weight_gradient((op.microbatch, op.segment))
        else:
            result = self.chunks[op.chunk].backward((op.microbatch, op.segment), given)
        if self.trainer.waits_for_gpu and self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        self.spans.append(Span(op, start, time.perf_counter()))
        if self.schedule.next_chunk(op) is not None:
            self.results[output(op)] = result
        self.note_peaks()

    def input(self, op: Op) -> Tensor | None:
        """What `op` gets from another chunk: hidden states, a gradient, or nothing."""
        need = next((n for n in self.schedule.needs(op) if n.chunk != op.chunk), None)
        if need is None:
            return None
        return self.results.pop(need) if need in self.results else self.mailbox.take(need)

    def forward(self, op: Op, given: Tensor | None) -> Tensor:
        part = self.cut(op)
        x = self.tokens[part] if given is None else given
        loss = None
        if op.chunk == self.schedule.n_chunks - 1:

            def loss(logits: Tensor) -> Tensor:
                return self.trainer.loss(logits, self.targets[part]) / self.n_targets

        result = self.chunks[op.chunk].forward(
            (op.microbatch, op.segment), x, self.positions[part], loss, op in self.trainer.splits
        )
        if loss is not None:
            self.loss += result
        return result

    def note_peaks(self) -> None:
        chunks = self.chunks.values()
        self.peak_parts = max(self.peak_parts, sum(chunk.n_held for chunk in chunks))
        held = sum(chunk.held_bytes for chunk in chunks)
        self.peak_activation_bytes = max(self.peak_activation_bytes, held)
