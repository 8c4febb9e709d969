"""One matrix on two ranks: the gradients of tied embeddings (chapter 2).

A tied model uses one matrix as embedding and as head, so its gradient is the sum of both uses. In a
pipeline the first and the last rank each own a copy. Whoever forgets the sum trains two matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvpipe.pipeline.messages import Mailbox
from kvpipe.pipeline.ops import Schedule
from kvpipe.pipeline.stages import Stages, tied_ends


@contextmanager
def sums_tied_gradients(mailbox: Mailbox, schedule: Schedule, stages: Stages) -> Iterator[None]:
    """What is added to both copies' gradients inside is summed between the two ranks at the end.

    a + b and b + a have the same bits, so the copies stay equal. Gradients of earlier steps, which
    have been summed already, are set aside meanwhile.
    """
    first, last = schedule.placement[0], schedule.placement[-1]
    embedding, head = tied_ends(stages)
    own = embedding if head is None else head
    if own is None or first == last or not own.requires_grad:
        yield  # on one rank both ends share one matrix, and autograd sums
        return
    earlier, own.grad = own.grad, None
    yield
    own.grad += mailbox.exchange(own.grad, first + last - mailbox.rank, "tied gradient of")
    if earlier is not None:
        own.grad += earlier
