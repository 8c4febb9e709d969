"""What one rank sends per layer, in bytes, and when sending hides behind computing (chapter 3).

No tensors. Letters: B batch, T tokens of one rank (S/P), H query heads, K KV heads, D head size,
P ranks. The counts are of one rank and one layer and hold for equal blocks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes that traffic depends on."""

    n_ranks: int  # P
    n_tokens: int  # S, of the whole sequence
    n_heads: int  # H
    n_kv_heads: int  # K
    head_size: int  # D
    batch: int = 1  # B
    itemsize: int = 2  # bytes of an element on its way: 2 in bfloat16
    sum_itemsize: int = 4  # bytes of an element of a running sum: float32

    def __post_init__(self) -> None:
        if self.n_tokens % self.n_ranks:
            raise ValueError(
                f"{self.n_tokens} tokens do not divide evenly over {self.n_ranks} ranks, and these "
                "counts are for equal blocks; use a multiple"
            )

    @property
    def kv_elements(self) -> int:
        """Keys and values of one rank's tokens."""
        return 2 * self.batch * self.n_kv_heads * self.n_tokens // self.n_ranks * self.head_size

    @property
    def q_elements(self) -> int:
        """Queries (or outputs) of one rank's tokens."""
        return self.batch * self.n_heads * self.n_tokens // self.n_ranks * self.head_size


def ring_forward_bytes(s: Shape) -> int:
    """P - 1 times the keys and values of a block. Gathering all of them sends as much."""
    return (s.n_ranks - 1) * s.kv_elements * s.itemsize


def ring_backward_bytes(s: Shape) -> int:
    """Keys and values once more, and P times their gradient, which has to come home.

    The gradient travels as a running sum, in `sum_itemsize` bytes.
    """
    gradient = s.n_ranks * s.kv_elements * s.sum_itemsize if s.n_ranks > 1 else 0
    return ring_forward_bytes(s) + gradient


def all_gather_backward_bytes(s: Shape) -> int:
    """Keys and values once more, and the gradient of every foreign block to its owner, once."""
    return ring_forward_bytes(s) + (s.n_ranks - 1) * s.kv_elements * s.sum_itemsize


def ulysses_forward_bytes(s: Shape) -> int:
    """Queries, keys, values and outputs change places once: all but the own share is sent.

    Where one KV head serves query heads of several ranks, every one of them is sent a copy.
    """
    heads = ulysses_heads(s.n_heads, s.n_kv_heads, s.n_ranks)
    copies = sum(len(kv) for _, kv in heads) / s.n_kv_heads  # 1 if no KV head is needed twice
    elements = 2 * s.q_elements + copies * s.kv_elements
    return round(elements * s.itemsize * (s.n_ranks - 1) / s.n_ranks)  # the mean over the ranks


def ulysses_heads(n_heads: int, n_kv_heads: int, n_ranks: int) -> list[tuple[range, range]]:
    """Rank -> its query heads, and the KV heads that those read.

    Raises ValueError unless P divides H.
    """
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_heads} query heads are not a multiple of {n_kv_heads} KV heads")
    if n_heads % n_ranks:
        fitting = [p for p in range(1, n_heads + 1) if n_heads % p == 0]
        raise ValueError(
            f"{n_heads} query heads cannot be dealt evenly to {n_ranks} ranks; Ulysses works with "
            f"{', '.join(map(str, fitting))} ranks here, the ring with any number"
        )
    share, group = n_heads // n_ranks, n_heads // n_kv_heads
    mine = [range(rank * share, (rank + 1) * share) for rank in range(n_ranks)]
    return [(q, range(q[0] // group, q[-1] // group + 1)) for q in mine]


def decode_bytes(s: Shape) -> int:
    """Of one token: the partial output and its log-sum-exp to every other rank, in float32."""
    return (s.n_ranks - 1) * s.batch * s.n_heads * (s.head_size + 1) * s.sum_itemsize


def hiding_tokens(
    flops_per_s: float,
    bytes_per_s: float,
    n_heads: int = 1,
    n_kv_heads: int = 1,
    *,
    causal: bool = False,
    itemsize: int = 2,
) -> float:
    r"""Tokens per rank from which a ring step computes at least as long as it sends, forward.

    Full attention of c queries and c keys takes 4c²HD FLOPs, the block 2cKD elements:
    $c \ge \frac{F}{B}\cdot\frac{K}{H}$ in 16 bits (arXiv:2310.01889, section 3, has H = K). A
    balanced causal step has half the pairs, so c doubles.
    """
    full = flops_per_s / bytes_per_s * n_kv_heads / n_heads * itemsize / 2
    return 2 * full if causal else full
