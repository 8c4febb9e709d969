"""Who computes how much, and when: pairs of queries and keys, counted (chapter 3).

No tensors. At step s rank r works on the keys that came from rank (r - s) mod P, and the slowest
rank of a step holds the others up.
"""

from __future__ import annotations

from kvpipe.context.partitions import Partition
from kvpipe.context.tiles import Tile, tile


def source(rank: int, step: int, n_ranks: int) -> int:
    """Whose keys `rank` has in hand at `step` of the ring."""
    return (rank - step) % n_ranks


def holder(block: int, step: int, n_ranks: int) -> int:
    """Who has the keys of rank `block` in hand at `step` of the ring."""
    return (block + step) % n_ranks


def tiles(partition: Partition, causal: bool = True, window: int | None = None) -> list[list[Tile]]:
    """[step][rank] -> what that rank computes at that step."""
    P = partition.n_ranks
    tokens = [partition.tokens(rank) for rank in range(P)]
    return [
        [tile(tokens[rank], tokens[source(rank, step, P)], causal, window) for rank in range(P)]
        for step in range(P)
    ]


def pairs_per_step(
    partition: Partition, causal: bool = True, window: int | None = None
) -> list[list[int]]:
    """[step][rank] -> visible (query, key) pairs."""
    return [[t.pairs for t in step] for step in tiles(partition, causal, window)]


def pairs_per_rank(
    partition: Partition, causal: bool = True, window: int | None = None
) -> list[int]:
    """Visible (query, key) pairs of every rank over the whole turn."""
    return [sum(steps) for steps in zip(*pairs_per_step(partition, causal, window), strict=True)]


def critical_path(partition: Partition, causal: bool = True, window: int | None = None) -> int:
    """Pairs on the critical path: the largest share of every step, added up.

    Nobody starts a step before the keys of it have arrived, so a rank with nothing to do waits.
    """
    return sum(max(step) for step in pairs_per_step(partition, causal, window))


def efficiency(partition: Partition, causal: bool = True, window: int | None = None) -> float:
    """All pairs / (P * critical path): 1 when all ranks are busy in every step."""
    total = sum(pairs_per_rank(partition, causal, window))
    return total / (partition.n_ranks * critical_path(partition, causal, window))


def contiguous_efficiency(n_ranks: int) -> float:
    """The limit for causal contiguous blocks and a long sequence: P / (2P - 1)."""
    return n_ranks / (2 * n_ranks - 1)
