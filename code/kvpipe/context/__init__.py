"""Context parallelism (chapter 3): one long sequence on many ranks.

Nothing here imports torch: who holds which tokens, who computes what and when, who sends how much.
The tensors are in `attend` (attention over ranks), `prefill` (a whole model), `decode` (a cache
that lies on several ranks), `merge` and `blocks` (the mathematics).
"""

from kvpipe.context.interleave import Interleave
from kvpipe.context.partitions import (
    PARTITIONS,
    Partition,
    contiguous,
    partition,
    striped,
    zigzag,
)
from kvpipe.context.tiles import Tile, seen_by_each, tile
from kvpipe.context.traffic import (
    Shape,
    all_gather_backward_bytes,
    decode_bytes,
    hiding_tokens,
    ring_backward_bytes,
    ring_forward_bytes,
    ulysses_forward_bytes,
    ulysses_heads,
)
from kvpipe.context.work import (
    contiguous_efficiency,
    critical_path,
    efficiency,
    holder,
    pairs_per_rank,
    pairs_per_step,
    source,
    tiles,
)

__all__ = [
    "PARTITIONS",
    "Interleave",
    "Partition",
    "Shape",
    "Tile",
    "all_gather_backward_bytes",
    "contiguous",
    "contiguous_efficiency",
    "critical_path",
    "decode_bytes",
    "efficiency",
    "hiding_tokens",
    "holder",
    "pairs_per_rank",
    "pairs_per_step",
    "partition",
    "ring_backward_bytes",
    "ring_forward_bytes",
    "seen_by_each",
    "source",
    "striped",
    "tile",
    "tiles",
    "ulysses_forward_bytes",
    "ulysses_heads",
    "zigzag",
]
