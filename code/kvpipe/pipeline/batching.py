"""Which batch decodes in which slot, decided from the tokens alone (chapter 2).

No tensors and no messages. Every rank keeps the same slots and sees the same tokens in the same
order, so all come to the same decision without being told: when a batch is finished, and which
waiting batch takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One prompt and when its answer ends."""

    prompt: tuple[int, ...]
    max_new_tokens: int = 64
    stop_tokens: frozenset[int] = frozenset()

    def ends_with(self, new_tokens: Sequence[int]) -> bool:
        """Whether the answer is complete; a stop token belongs to it."""
        return len(new_tokens) >= self.max_new_tokens or new_tokens[-1] in self.stop_tokens


class Batch:
    """Requests that decode together, and their new tokens so far.

    A finished row keeps its place until all rows are finished; what is computed for it is ignored.
    """

    def __init__(self, index: int, requests: Sequence[Request]) -> None:
        self.index, self.requests = index, tuple(requests)
        self.new_tokens: list[list[int]] = [[] for _ in requests]
        self.is_row_done = [False] * len(self.requests)
        self.latest: list[int] | None = None  # the input of the next step, None for the first

    @property
    def is_done(self) -> bool:
        return all(self.is_row_done)

    def accept(self, tokens: Sequence[int]) -> None:
        """Take one new token per row."""
        self.latest = list(tokens)
        for row, (request, token) in enumerate(zip(self.requests, tokens, strict=True)):
            if not self.is_row_done[row]:
                self.new_tokens[row].append(token)
                self.is_row_done[row] = request.ends_with(self.new_tokens[row])


class Slots:
    """The batches in flight and those that wait for a place."""

    def __init__(self, batches: Sequence[Sequence[Request]], n_slots: int) -> None:
        self.batches = [Batch(index, requests) for index, requests in enumerate(batches)]
        self._waiting = deque(self.batches)
        self.in_flight = [self._next() for _ in range(n_slots)]

    @property
    def is_finished(self) -> bool:
        return not any(self.in_flight)

    def accept(self, slot: int, tokens: Sequence[int]) -> bool:
        """Give the batch in `slot` its tokens; True if that finished it and freed the slot."""
        self.in_flight[slot].accept(tokens)
        if not self.in_flight[slot].is_done:
            return False
        self.in_flight[slot] = self._next()
        return True

    def most_steps(self) -> int:
        """No slot runs more steps than this, whenever batches end."""
        longest = [max(r.max_new_tokens for r in batch.requests) for batch in self.batches]
        return sum(longest) if self._waiting else max(longest)

    def _next(self) -> Batch | None:
        return self._waiting.popleft() if self._waiting else None


def check_batches(
    batches: Sequence[Sequence[Request]], n_slots: int, vocab_size: int, context: int
) -> None:
    """Raise ValueError for what cannot be decoded, before any rank has sent anything."""
    if not batches or not all(batches):
        raise ValueError("there must be at least one batch, and every batch needs a request")
    if not 1 <= n_slots <= len(batches):
        raise ValueError(
            f"{n_slots} batches in flight, but there are {len(batches)}: use 1 to {len(batches)}"
        )
    for index, batch in enumerate(batches):
        longest = max(len(request.prompt) for request in batch)
        for request in batch:
            if not request.prompt or request.max_new_tokens < 1:
                raise ValueError(
                    f"batch {index} has a request of {len(request.prompt)} prompt tokens and "
                    f"{request.max_new_tokens} new ones; both must be at least 1"
                )
            if not 0 <= min(request.prompt) <= max(request.prompt) < vocab_size:
                raise ValueError(
                    f"batch {index} has a token id outside the vocabulary 0..{vocab_size - 1}"
                )
        n_new = max(request.max_new_tokens for request in batch)
        if longest + n_new > context:
            raise ValueError(
                f"batch {index}: {longest} prompt tokens and {n_new} new ones exceed the model's "
                f"context of {context}"
            )
