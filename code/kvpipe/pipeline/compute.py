"""Forward and backward of one chunk of layers, for one part of a batch at a time (chapter 2).

A *part* is one segment of one micro-batch. A forward keeps its graph until the backward of the
same part; what comes in and goes out is a detached tensor, because the graph ends where the rank
ends. No communication here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from kvpipe.cache import Seen
from kvpipe.pipeline.backward import WeightGradients, deferring
from kvpipe.transformer import Stage

Part = tuple[int, int]  # micro-batch, segment


@dataclass
class Held:
    """What a forward leaves behind for its backward."""

    input: Tensor  # a leaf, unless it is token ids
    result: Tensor  # the root of the graph: the loss on the last chunk
    segment: Segment | None
    later: WeightGradients | None
    nbytes: int


@dataclass
class Segment:
    """One segment's own keys and values, per layer, and the copies that later segments read.

    The copies are leaves: they collect the gradients of every later segment, and the segment's
    own backward starts from them as well as from its output.
    """

    positions: Tensor
    made: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    read: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.made[layer] = k, v
        self.read[layer] = k.detach().requires_grad_(), v.detach().requires_grad_()

    def roots(self) -> list[tuple[Tensor, Tensor]]:
        """(tensor, gradient from later segments) of every key and value that was read."""
        pairs = [
            (made, read.grad)
            for layer in self.made
            for made, read in zip(self.made[layer], self.read[layer], strict=True)
        ]
        return [(made, gradient) for made, gradient in pairs if gradient is not None]

    def forget(self) -> None:
        self.made.clear()
        self.read.clear()


class Segments:
    """The segments of one micro-batch, as a cache (`kvpipe.cache.Cache`) for the newest one."""

    nbytes = 0  # the graphs hold them

    def __init__(self) -> None:
        self.earlier: list[Segment] = []
        self.newest: Segment | None = None

    @property
    def seen(self) -> int:
        return sum(segment.positions.shape[1] for segment in self.earlier)

    def start(self, positions: Tensor) -> Segment:
        """Let a new segment begin; those before it are now earlier ones."""
        self.earlier += [] if self.newest is None else [self.newest]
        self.newest = Segment(positions)
        return self.newest

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        self.newest.add(layer, k, v)
        keys = [segment.read[layer][0] for segment in self.earlier]
        values = [segment.read[layer][1] for segment in self.earlier]
        seen = [segment.positions for segment in self.earlier]
        return (
            torch.cat([*keys, k], dim=2),
            torch.cat([*values, v], dim=2),
            torch.cat([*seen, positions], dim=1),
        )

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        """Training keeps every key."""


class Saved(saved_tensors_hooks):
    """Counts the bytes that a forward keeps for its backward, without the weights."""

    def __init__(self, stage: Stage) -> None:
        self._weights = {p.untyped_storage().data_ptr() for p in stage.parameters()}
        self._storages: dict[int, int] = {}
        super().__init__(self._note, lambda tensor: tensor)

    @property
    def nbytes(self) -> int:
        return sum(self._storages.values())

    def _note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would hold its own graph in a circle


class Chunk:
    """The chunk's stage, and the graphs of the parts that went forward but not yet backward."""

    def __init__(self, stage: Stage, n_segments: int = 1, counts_bytes: bool = False) -> None:
        self.stage, self.n_segments, self.counts_bytes = stage, n_segments, counts_bytes
        self._held: dict[Part, Held] = {}
        self._later: dict[Part, WeightGradients] = {}
        self._segments: dict[int, Segments] = {}  # micro-batch -> its segments so far

    @property
    def n_held(self) -> int:
        """Parts between their forward and the end of their backward."""
        return len(self._held) + len(self._later)

    @property
    def held_bytes(self) -> int:
        """Bytes that those parts keep, if this chunk counts them."""
        graphs = sum(held.nbytes for held in self._held.values())
        return graphs + sum(later.nbytes for later in self._later.values())

    def forward(
        self,
        part: Part,
        x: Tensor,
        positions: Tensor,
        loss: Callable[[Tensor], Tensor] | None = None,
        splits: bool = False,
    ) -> Tensor:
        """The stage's output, or the `loss` of its logits, without graph.

        `splits`: the backward of this part will come as an input gradient and, later, a weight
        gradient.
        """
        x = x.detach()
        if x.is_floating_point():
            x.requires_grad_()
        segments = self._segments.setdefault(part[0], Segments()) if self.n_segments > 1 else None
        segment = segments.start(positions) if segments else None
        later = WeightGradients() if splits else None
        saved = Saved(self.stage) if self.counts_bytes else None
        with contextlib.ExitStack() as contexts:
            for context in (saved, deferring(later) if splits else None):
                contexts.enter_context(context or contextlib.nullcontext())
            result = self.stage(x, positions, segments)
            result = result if loss is None else loss(result)
        self._held[part] = Held(x, result, segment, later, saved.nbytes if saved else 0)
        return result.detach()

    def backward(self, part: Part, gradient: Tensor | None) -> Tensor | None:
        """From the gradient of the output to that of the input; None where tokens came in.

        Weight gradients are added to `grad`, except those that were split off.
        """
        held = self._held.pop(part)
        roots = [(held.result, gradient), *(held.segment.roots() if held.segment else ())]
        trained = [(root, g) for root, g in roots if root.requires_grad]
        if trained:  # a first chunk may be frozen as a whole
            torch.autograd.backward(*map(list, zip(*trained, strict=True)))
        if held.later is not None:
            self._later[part] = held.later
        if held.segment is not None:
            held.segment.forget()
        return held.input.grad

    def weight_gradient(self, part: Part) -> None:
        """The weight gradients that `backward` left for later."""
        self._later.pop(part).compute()
