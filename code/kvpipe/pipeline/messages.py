"""Messages between the ranks of a pipeline: posted early, kept until done, waited for with a limit.

The only module of chapter 2 that sends and receives while a schedule runs. A message is known by
the output it carries (`kvpipe.pipeline.Op`); both ends agree on its shape beforehand.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from kvpipe.pipeline.ops import Op
from kvpipe.pipeline.timeline import Transfer


class Posted(NamedTuple):
    """A message on its way: its handle, and the memory that must outlive the handle."""

    what: str
    tensor: Tensor
    work: dist.Work
    other: int  # the rank at the other end


class Mailbox:
    """The sends and receives of one rank of `group`.

    Receives are posted before they are needed, and taken when they are. Sends return at once;
    beyond `sends_kept` of them, the oldest is waited for. A rank that waits for a message at or
    after its place in a `kvpipe.pipeline.program` cannot deadlock, so any `sends_kept` is safe; 0
    makes every send synchronous.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device | str = "cpu",
        sends_kept: int = 8,
        timeout_s: float | None = None,  # of a single wait; None: the timeout of the group
    ) -> None:
        self.group, self.device = group, torch.device(device)
        self.rank = group.rank()
        self.sends_kept = sends_kept
        self.timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        # NCCL moves memory of a GPU; gloo moves memory of the host.
        self.wire = self.device if "nccl" in dist.get_backend_config(group) else torch.device("cpu")
        self.sent: list[Transfer] = []  # ends when it starts: only the receiver knows its end
        self.arrived: dict[Op, float] = {}  # when a message was found to be here
        self.exchanged_bytes = 0  # given away in `exchange`
        self._inbox: dict[Op, Posted] = {}
        self._outbox: deque[Posted] = deque()

    @property
    def n_posted(self) -> int:
        """Receives posted and not yet taken."""
        return len(self._inbox)

    def post(self, op: Op, source: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Have memory ready for `op`, so that it can travel while this rank computes."""
        buffer = torch.empty(*shape, dtype=dtype, device=self._wire(dtype))
        with self._explained(f"{op} from", source):
            work = dist.irecv(buffer, group=self.group, group_src=source)
        self._inbox[op] = Posted(f"{op} from", buffer, work, source)

    def take(self, op: Op) -> Tensor:
        """The tensor of `op`, once it is here."""
        posted = self._inbox.pop(op)
        self._wait(posted)
        self.arrived[op] = time.perf_counter()
        return posted.tensor.to(self.device)

    def send(self, op: Op, tensor: Tensor, target: int) -> None:
        """Give `tensor` away. It must not change before `flush`."""
        tensor = tensor.detach().to(self._wire(tensor.dtype)).contiguous()
        now = time.perf_counter()
        with self._explained(f"{op} to", target):
            work = dist.isend(tensor, group=self.group, group_dst=target)
        self.sent.append(Transfer(op, self.rank, target, now, now, tensor.nbytes))
        self._outbox.append(Posted(f"{op} to", tensor, work, target))
        while len(self._outbox) > self.sends_kept:
            self._wait(self._outbox.popleft())

    def flush(self) -> None:
        """Wait until every send has left."""
        while self._outbox:
            self._wait(self._outbox.popleft())

    def exchange(self, tensor: Tensor, other: int, what: str) -> Tensor:
        """Give rank `other` a tensor and get its tensor of the same shape; `what` names it."""
        mine = tensor.detach().to(self._wire(tensor.dtype)).contiguous()
        theirs = torch.empty_like(mine)
        both = [
            dist.P2POp(dist.isend, mine, group=self.group, group_peer=other),
            dist.P2POp(dist.irecv, theirs, group=self.group, group_peer=other),
        ]
        with self._explained(what, other):
            works = dist.batch_isend_irecv(both)
        for work in works:
            self._wait(Posted(what, mine, work, other))
        self.exchanged_bytes += mine.nbytes
        return theirs.to(tensor.device)

    def _wire(self, dtype: torch.dtype) -> torch.device:
        """Where a message must lie; tokens (integers) always travel from host to host."""
        return self.wire if dtype.is_floating_point else torch.device("cpu")

    def _wait(self, posted: Posted) -> None:
        with self._explained(posted.what, posted.other):
            posted.work.wait() if self.timeout is None else posted.work.wait(self.timeout)

    @contextmanager
    def _explained(self, what: str, other: int) -> Iterator[None]:
        """Turn the transport's error into one that names the message and both ranks."""
        try:
            yield
        except RuntimeError as error:
            where = f"rank {self.rank}, {what} rank {other}"
            reason = str(error).partition("] ")[2] or str(error)
            if "timed out" in reason.lower() or "timeout" in reason.lower():
                raise TimeoutError(f"{where}: the other end did not answer ({reason})") from error
            raise ConnectionError(f"{where}: the connection is gone ({reason})") from error
