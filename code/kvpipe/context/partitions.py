"""Which rank holds which tokens of one long sequence: contiguous, zigzag, striped (chapter 3).

No tensors: token indices as ranges. Any length is accepted that gives every rank something; blocks
differ by at most one token, the longer ones first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise


@dataclass(frozen=True)
class Partition:
    """The tokens of every rank, each an ascending tuple of ranges."""

    name: str
    n_tokens: int  # S
    blocks: tuple[tuple[range, ...], ...]  # rank -> its blocks

    @property
    def n_ranks(self) -> int:
        return len(self.blocks)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of every rank."""
        return tuple(sum(map(len, blocks)) for blocks in self.blocks)

    def tokens(self, rank: int) -> list[int]:
        """The tokens of `rank`, ascending: what index i of its shard stands for."""
        return list(chain.from_iterable(self.blocks[rank]))

    @property
    def order(self) -> list[int]:
        """The tokens of rank 0, then of rank 1, ...: what index i of all shards stands for."""
        return [token for rank in range(self.n_ranks) for token in self.tokens(rank)]

    @property
    def inverse(self) -> list[int]:
        """Where each token lies in `order`: `order[inverse[t]] == t`."""
        places = [0] * self.n_tokens
        for place, token in enumerate(self.order):
            places[token] = place
        return places

    def owner(self, token: int) -> int:
        """The rank that holds `token`."""
        for rank, blocks in enumerate(self.blocks):
            if any(token in block for block in blocks):
                return rank
        raise ValueError(f"token {token} is outside 0..{self.n_tokens - 1}")


def contiguous(n_tokens: int, n_ranks: int) -> Partition:
    """Rank r holds the r-th of P blocks. Raises ValueError for fewer than P tokens."""
    blocks = _cut(n_tokens, n_ranks, n_ranks, "contiguous")
    return Partition("contiguous", n_tokens, tuple((block,) for block in blocks))


def zigzag(n_tokens: int, n_ranks: int) -> Partition:
    """Rank r holds the r-th of 2P blocks from the front and the r-th from the back.

    Raises ValueError for fewer than 2P tokens.
    """
    blocks = _cut(n_tokens, 2 * n_ranks, n_ranks, "zigzag")
    pairs = tuple((blocks[rank], blocks[-1 - rank]) for rank in range(n_ranks))
    return Partition("zigzag", n_tokens, pairs)


def striped(n_tokens: int, n_ranks: int) -> Partition:
    """Token t lies on rank t mod P (arXiv:2311.09431). Raises ValueError for fewer than P."""
    _check(n_tokens, n_ranks, n_ranks, "striped")
    stripes = tuple((range(rank, n_tokens, n_ranks),) for rank in range(n_ranks))
    return Partition("striped", n_tokens, stripes)


PARTITIONS: dict[str, Callable[[int, int], Partition]] = {
    "contiguous": contiguous,
    "zigzag": zigzag,
    "striped": striped,
}


def partition(name: str, n_tokens: int, n_ranks: int) -> Partition:
    """The partition called `name`. Raises ValueError for an unknown one."""
    if name not in PARTITIONS:
        raise ValueError(f"no partition is called {name!r}; there are {', '.join(PARTITIONS)}")
    return PARTITIONS[name](n_tokens, n_ranks)


def _cut(n_tokens: int, n_blocks: int, n_ranks: int, name: str) -> list[range]:
    """`n_blocks` consecutive ranges that differ by at most one token."""
    _check(n_tokens, n_blocks, n_ranks, name)
    size, longer = divmod(n_tokens, n_blocks)
    ends = accumulate((size + (i < longer) for i in range(n_blocks)), initial=0)
    return [range(start, end) for start, end in pairwise(ends)]


def _check(n_tokens: int, n_least: int, n_ranks: int, name: str) -> None:
    if n_ranks < 1:
        raise ValueError(f"{n_ranks} ranks cannot hold a sequence; at least 1 is needed")
    if n_tokens < n_least:
        raise ValueError(
            f"{n_tokens} tokens cannot be laid {name} over {n_ranks} ranks: that needs {n_least} "
            "at least; use fewer ranks or pad the sequence (position -1 marks padding)"
        )
