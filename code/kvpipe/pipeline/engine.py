"""The same stages under `torch.distributed.pipelining`, torch's own pipeline engine (chapter 2).

An independent check of ours, and the way on: torch's engine also does DTensor, FSDP and compiled
stages. A `Stage` is an ordinary module, so it needs no change. Two things stay ours: the loss of a
part is divided by the targets of the whole batch, and tied gradients are summed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from kvpipe.pipeline.loss import Loss, n_targets, summed_cross_entropy
from kvpipe.pipeline.messages import Mailbox
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.stages import Stages, share_tied
from kvpipe.pipeline.tied import sums_tied_gradients

# Our schedule -> torch's class; the second takes several stages per rank.
ENGINES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved-1f1b": pipelining.ScheduleInterleaved1F1B,
    "zb-h1": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
}
ONE_STAGE = ("gpipe", "1f1b")


class TorchEngine:
    """`kvpipe.pipeline.runtime.Trainer` with torch's engine inside; micro-batches must be equal."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        schedule: Schedule,
        stages: Stages,
        loss: Loss = summed_cross_entropy,
    ) -> None:
        if schedule.name not in ENGINES:
            raise ValueError(
                f"torch.distributed.pipelining has no {schedule.name}; it has {', '.join(ENGINES)}"
            )
        share_tied(stages)
        self.schedule, self.stages, self.loss = schedule, stages, loss
        self.device = next(self.parameters()).device
        self.mailbox = Mailbox(group, self.device)
        self.n_targets = 1
        wrapped = [
            pipelining.PipelineStage(stage, chunk, schedule.n_chunks, self.device, group=group)
            for chunk, stage in stages.items()
        ]
        self.engine = ENGINES[schedule.name](
            wrapped[0] if schedule.name in ONE_STAGE else wrapped,
            schedule.n_microbatches,
            loss_fn=lambda logits, targets: self.loss(logits, targets) / self.n_targets,
            scale_grads=False,  # the loss is scaled already
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter of this rank, once."""
        return nn.ModuleList(self.stages.values()).parameters()

    def step(self, tokens: Tensor, targets: Tensor) -> float | None:
        """Add the gradients of the batch to `grad`; the loss on the rank of the last chunk."""
        if tokens.shape[0] % self.schedule.n_microbatches:
            raise ValueError(
                f"{tokens.shape[0]} rows are not a multiple of {self.schedule.n_microbatches} "
                "micro-batches, and torch's engine wants equal ones"
            )
        self.n_targets = n_targets(targets)
        losses: list[Tensor] = []
        is_first, is_last = (end in self.stages for end in (0, self.schedule.n_chunks - 1))
        inputs = (tokens.to(self.device),) if is_first else ()
        outputs = {"target": targets.to(self.device), "losses": losses} if is_last else {}
        with sums_tied_gradients(self.mailbox, self.schedule, self.stages):
            self.engine.step(*inputs, **outputs)
        return torch.stack(losses).sum().item() if is_last else None
