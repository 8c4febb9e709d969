"""Ranks in a circle, real or simulated: the only module of chapter 3 that sends anything.

An algorithm is written once, from the view of one rank, as a generator: it yields a message and is
given a promise of what arrives in exchange. It computes in between, and calls the promise when it
needs the tensor. `Ring` keeps the promise with a process group, `SimulatedRing` runs all ranks in
one process, in lock step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from kvpipe.pipeline.agreement import same
from kvpipe.pipeline.messages import Mailbox, Posted

Size = Sequence[int]


class Shift(NamedTuple):
    """To the next rank; from the previous one arrives a tensor of size `arriving`."""

    tensor: Tensor
    arriving: Size


class Gather(NamedTuple):
    """To all; from all arrive tensors of sizes `arriving`, a list in the order of ranks."""

    tensor: Tensor
    arriving: Sequence[Size]


class Exchange(NamedTuple):
    """Tensor i to rank i; from rank i arrives a tensor of size `arriving[i]`, a list."""

    tensors: Sequence[Tensor]
    arriving: Sequence[Size]


Message = Shift | Gather | Exchange
Promise = Callable[[], Any]  # the tensor of a Shift, the list of a Gather or an Exchange
Program = Generator[Message, Promise, Any]  # what one rank does; returns its result


class SimulatedRing:
    """P ranks in this process. `sent_bytes` counts what each would have sent to others."""

    def __init__(self, n_ranks: int) -> None:
        if n_ranks < 1:
            raise ValueError(f"a ring of {n_ranks} ranks is none; use 1 or more")
        self.n_ranks, self.ranks = n_ranks, tuple(range(n_ranks))
        self.sent_bytes = dict.fromkeys(self.ranks, 0)

    def run(self, programs: Sequence[Program]) -> list[Any]:
        """The results of all ranks: every one goes to its next message, then all are delivered."""
        results: list[Any] = [None] * self.n_ranks
        promises: list[Promise | None] = [None] * self.n_ranks
        while True:
            messages: list[Message | None] = [None] * self.n_ranks
            for rank, program in enumerate(programs):
                try:
                    messages[rank] = program.send(promises[rank])
                except StopIteration as end:
                    results[rank] = end.value
            if all(message is None for message in messages):
                return results
            kinds = {type(message).__name__ for message in messages}
            assert len(kinds) == 1, f"ranks are out of step: {kinds}"
            for rank, message in enumerate(messages):
                self.sent_bytes[rank] += sent_bytes(message, rank, self.n_ranks)
            promises = [self._promise(messages, rank) for rank in self.ranks]

    def agree(self, notes: Sequence[dict[str, Any]], what: str) -> None:
        """Raise ValueError unless all ranks noted the same; a note's "problem" is raised first."""
        _agree(notes, what)

    def _promise(self, messages: Sequence[Any], rank: int) -> Promise:
        if isinstance(messages[rank], Shift):
            return lambda: messages[(rank - 1) % self.n_ranks].tensor
        if isinstance(messages[rank], Gather):
            return lambda: [message.tensor for message in messages]
        return lambda: [message.tensors[rank] for message in messages]


class Ring(Mailbox):
    """This process as one rank of `group`, with gloo or nccl.

    `device` is where its tensors live. `timeout_s` bounds every wait, by default as the group
    does. A neighbour that is gone raises ConnectionError, one that does not answer TimeoutError.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device | str = "cpu",
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(group, device, timeout_s=timeout_s)
        self.n_ranks, self.ranks = group.size(), (group.rank(),)
        self.sent_bytes = {self.rank: 0}

    def run(self, programs: Sequence[Program]) -> list[Any]:
        """The result of this rank's program, as a list of one."""
        [program] = programs
        try:
            message = next(program)
            while True:
                message = program.send(self._send(message))
        except StopIteration as end:
            return [end.value]

    def agree(self, notes: Sequence[dict[str, Any]], what: str) -> None:
        """Raise ValueError, on all ranks alike, unless all noted the same; also a meeting point.

        A note holds what JSON can. Its bytes do not count as sent.
        """
        [note], P = notes, self.n_ranks
        text = torch.tensor(list(json.dumps(note).encode()), dtype=torch.uint8)
        with self._explained(f"agreeing on {what}, with", (self.rank - 1) % P):
            lengths = self._gather(Gather(torch.tensor([len(text)]), [(1,)] * P))()
            texts = self._gather(Gather(text, [(int(n),) for n in lengths]))()
        _agree([json.loads(bytes(text.tolist())) for text in texts], what)

    def _send(self, message: Message) -> Promise:
        self.sent_bytes[self.rank] += sent_bytes(message, self.rank, self.n_ranks)
        previous = (self.rank - 1) % self.n_ranks
        with self._explained("message from", previous):
            return _POST[type(message)](self, message)

    def _shift(self, message: Shift) -> Promise:
        """Both directions are posted at once: two blocking sends would wait for each other."""
        previous, following = ((self.rank + d) % self.n_ranks for d in (-1, 1))
        tensor = message.tensor.to(self.wire).contiguous()
        arriving = torch.empty(*message.arriving, dtype=tensor.dtype, device=self.wire)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, group=self.group, group_peer=following),
                dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=previous),
            ]
        )

        def arrived() -> Tensor:
            for work in works:
                self._wait(Posted("block from", tensor, work, previous))
            return arriving.to(message.tensor.device)

        return arrived

    def _gather(self, message: Gather) -> Promise:
        """Shorter tensors are filled up to the longest: the collective wants one size."""
        sizes = [prod(size) for size in message.arriving]
        flat = message.tensor.to(self.wire).flatten()
        flat = pad(flat, (0, max(sizes) - flat.numel())) if min(sizes) < max(sizes) else flat
        arriving = [torch.empty_like(flat) for _ in sizes]
        work = dist.all_gather(arriving, flat, group=self.group, async_op=True)

        def arrived() -> list[Tensor]:
            self._wait(Posted("gather with", flat, work, (self.rank - 1) % self.n_ranks))
            parts = zip(arriving, sizes, message.arriving, strict=True)
            return [x[:n].view(*size).to(message.tensor.device) for x, n, size in parts]

        return arrived

    def _exchange(self, message: Exchange) -> Promise:
        flat = torch.cat([tensor.flatten() for tensor in message.tensors]).to(self.wire)
        out = [tensor.numel() for tensor in message.tensors]
        sizes = [prod(size) for size in message.arriving]
        arriving = flat.new_empty(sum(sizes))
        work = dist.all_to_all_single(arriving, flat, sizes, out, group=self.group, async_op=True)

        def arrived() -> list[Tensor]:
            self._wait(Posted("exchange with", flat, work, (self.rank - 1) % self.n_ranks))
            ends = pairwise(accumulate(sizes, initial=0))
            device = message.tensors[0].device
            parts = zip(ends, message.arriving, strict=True)
            return [arriving[a:b].view(*size).to(device) for (a, b), size in parts]

        return arrived


Circle = Ring | SimulatedRing
_POST = {Shift: Ring._shift, Gather: Ring._gather, Exchange: Ring._exchange}


def sent_bytes(message: Message, rank: int, n_ranks: int) -> int:
    """What `rank` sends to others with `message`; what it keeps costs nothing."""
    if isinstance(message, Shift):
        return message.tensor.nbytes
    if isinstance(message, Gather):
        return (n_ranks - 1) * message.tensor.nbytes
    return sum(t.nbytes for target, t in enumerate(message.tensors) if target != rank)


def _agree(notes: Sequence[dict[str, Any]], what: str) -> None:
    for rank, note in enumerate(notes):
        if problem := note.get("problem"):
            raise ValueError(f"rank {rank}: {problem}")
    same(notes, what)
