"""How long the segments of a sequence are: equal in tokens, or equal in work (chapter 2).

Under causal attention token t reads t + 1 keys, so of segments of equal length the last is the
dearest, and a pipeline runs at the pace of its dearest piece. Source: Seq1F1B
(arXiv 2406.03488), section on computation-wise partition.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt


def equal_segments(n_tokens: int, n_segments: int) -> tuple[int, ...]:
    """Lengths that differ by at most one token, the longer ones first."""
    _fits(n_tokens, n_segments)
    length, longer = divmod(n_tokens, n_segments)
    return tuple(length + (i < longer) for i in range(n_segments))


def equal_work_segments(
    n_tokens: int, n_segments: int, per_token: float, per_pair: float
) -> tuple[int, ...]:
    """Lengths whose work is equal, up to the rounding to whole tokens.

    `per_token` is the cost of one token outside attention, `per_pair` that of one visible
    (query, key) pair; only their ratio matters. The first n tokens cost
    n * per_token + n * (n + 1) / 2 * per_pair, a quadratic that is solved for each boundary.
    """
    _fits(n_tokens, n_segments)
    if min(per_token, per_pair) < 0 or per_token + per_pair == 0:
        raise ValueError(
            f"costs must be at least 0 and not both 0, got per_token={per_token}, "
            f"per_pair={per_pair}"
        )
    total = sum(segment_work([n_tokens], per_token, per_pair))
    boundaries = [0]
    for i in range(1, n_segments):
        exact = _tokens_for(total * i / n_segments, per_token, per_pair)
        # Every segment keeps at least one token, on both sides of the boundary.
        earliest, latest = boundaries[-1] + 1, n_tokens - (n_segments - i)
        boundaries.append(min(max(round(exact), earliest), latest))
    boundaries.append(n_tokens)
    return tuple(b - a for a, b in pairwise(boundaries))


def segment_work(lengths: Sequence[int], per_token: float, per_pair: float) -> tuple[float, ...]:
    """The work of each segment of one sequence under causal attention."""
    work, start = [], 0
    for length in lengths:
        pairs = length * start + length * (length + 1) / 2
        work.append(length * per_token + pairs * per_pair)
        start += length
    return tuple(work)


def _tokens_for(work: float, per_token: float, per_pair: float) -> float:
    """Solve per_pair / 2 * n^2 + (per_token + per_pair / 2) * n = work for n."""
    b = per_token + per_pair / 2
    # This form of the root stays exact where per_pair is 0 and the equation is linear.
    return 2 * work / (b + sqrt(b * b + 2 * per_pair * work))


def _fits(n_tokens: int, n_segments: int) -> None:
    if not 1 <= n_segments <= n_tokens:
        raise ValueError(
            f"{n_tokens} tokens cannot be cut into {n_segments} segments: "
            f"each needs at least one token, so use 1 to {n_tokens}"
        )
