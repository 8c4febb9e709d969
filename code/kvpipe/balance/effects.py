"""What sharing changes beside FLOPs: cache bytes, and bytes at the borders of stages. Chapter 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpipe.balance.costs import ModelCosts
from kvpipe.balance.stages import StageCosts


@dataclass(frozen=True)
class Border:
    """What crosses from one chunk to the next in the forward of one micro-batch, in bytes.

    The backward sends gradients of the same sizes the other way.
    """

    chunk: int  # the sender; the receiver is the next one
    hidden_bytes: int  # hidden states, always
    kv_bytes: int  # keys and values that later chunks read

    @property
    def ratio(self) -> float:
        """How many times the traffic without sharing."""
        return (self.hidden_bytes + self.kv_bytes) / self.hidden_bytes if self.hidden_bytes else 1.0


def cache_bytes_saved(
    costs: ModelCosts, kv_source: Sequence[int], bytes_per_element: int = 2
) -> int:
    """Cache bytes per token that shared layers no longer store: 2 K D elements each."""
    shared = (layer for layer, source in enumerate(kv_source) if source != layer)
    return sum(costs.layers[layer].kv_elements for layer in shared) * bytes_per_element


def borders(
    costs: ModelCosts,
    stages: StageCosts,
    kv_source: Sequence[int],
    n_rows: int = 1,
    bytes_per_element: int = 2,
) -> tuple[Border, ...]:
    """The traffic at every border between chunks on different ranks.

    A source is sent once over each border up to its last reader, however many layers read it.
    """
    chunk_of = {layer: c for c, chunk in enumerate(stages.chunks) for layer in chunk}
    farthest: dict[int, int] = {}  # source -> the last chunk that reads it
    for layer, source in enumerate(kv_source):
        farthest[source] = max(farthest.get(source, 0), chunk_of[layer])
    element = n_rows * costs.n_tokens * bytes_per_element
    found = []
    for chunk in range(len(stages.chunks) - 1):
        if stages.placement[chunk] == stages.placement[chunk + 1]:
            continue
        crossing = [s for s, last in farthest.items() if chunk_of[s] <= chunk < last]
        kv = sum(costs.layers[source].kv_elements for source in crossing)
        found.append(Border(chunk, element * costs.width, element * kv))
    return tuple(found)
