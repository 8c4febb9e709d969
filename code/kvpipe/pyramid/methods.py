r"""What to keep: budgets per layer and a score per token, one small class a method. Chapter 6.

PyramidKV (arXiv:2406.02069), SnapKV (arXiv:2404.14469), H2O (arXiv:2306.14048), StreamingLLM
(arXiv:2309.17453), and two that frame them: a random choice and keeping everything. Every method
keeps the last `window` tokens, and `budget` tokens per layer on average with the window counted,
so that only the choice differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvpipe.pyramid.budgets import Schedule, check, pyramid, uniform
from kvpipe.pyramid.scores import GROUPS, check_pool, pool, query_scores
from kvpipe.pyramid.selection import in_window


@dataclass(frozen=True)
class Observed:
    """What a layer knows when it chooses: queries, all keys it holds, where they stand."""

    q: Tensor  # (B, H, T, D), rotated
    k: Tensor  # (B, K, S, D), rotated
    q_positions: Tensor  # (B, T)
    k_positions: Tensor  # (B, K, S)
    last: Tensor  # (B,), the latest position of each row
    layer: int
    sliding_window: int | None = None  # of the layer, tokens


@dataclass(frozen=True)
class Method:
    """The base of all methods: the same budget in every layer, given in tokens or as a share.

    `budget` counts tokens per layer on average, `ratio` is that number as a share of the prompt;
    give one of them. Both contain the `window` last tokens, and a ratio never goes below them.
    Raises ValueError for both or neither, a budget below the window, a window below 1 and a ratio
    outside (0, 1].
    """

    budget: int | None = None
    ratio: float | None = None
    window: int = 8

    accumulates: ClassVar[bool] = (
        False  # scores of earlier queries are added to those of later ones
    )
    n_queries: ClassVar[int | None] = 0  # last queries that the scores read; None is all of them

    def __post_init__(self) -> None:
        if (self.budget is None) == (self.ratio is None):
            raise ValueError(
                f"budget is {self.budget} and ratio is {self.ratio}; give one: tokens per layer, "
                "or a share of the prompt"
            )
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio}; it is the share to keep, in (0, 1]")
        if self.budget is not None and self.budget != int(self.budget):
            raise ValueError(f"budget is {self.budget} tokens; for a share of the prompt use ratio")
        check(1, 1, self.window if self.budget is None else self.budget, self.window)

    def average(self, n_tokens: int) -> int:
        """Tokens per layer for a prompt of `n_tokens`, before it is split over the layers."""
        if self.ratio is None:
            return int(self.budget)
        return max(self.window, round(self.ratio * n_tokens))

    def budgets(self, n_layers: int, n_tokens: int) -> tuple[int, ...]:
        """Tokens that each layer keeps of a prompt of `n_tokens`, bottom layer first."""
        return uniform(n_layers, n_tokens, self.average(n_tokens), self.window)

    def scores(self, seen: Observed) -> Tensor:
        """The worth of every key, float32 (B, K, S); padding and the window need none."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores tokens")


@dataclass(frozen=True)
class SnapKV(Method):
    """Keeps what the last `window` queries look at, with its neighbours.

    Scores are summed over those queries, or averaged (`average_queries`), reduced over the heads of
    a KV head by `group`, and pooled over `kernel` neighbours; see `scores`. The defaults are those
    of the PyramidKV authors' experiments; kvpress has window 64, kernel 5, pooling "average" and
    `edge_bias`.
    """

    kernel: int = 7
    pooling: str = "max"
    group: str = "mean"
    average_queries: bool = False
    edge_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pool(self.kernel, self.pooling)
        if self.group not in GROUPS:
            raise ValueError(f"group {self.group!r} is unknown; there are {', '.join(GROUPS)}")

    @property
    def n_queries(self) -> int:
        return self.window

    def scores(self, seen: Observed) -> Tensor:
        w = self.window
        scores = query_scores(
            seen.q[:, :, -w:],
            seen.k,
            seen.q_positions[:, -w:],
            seen.k_positions,
            seen.sliding_window,
            self.group,
            self.average_queries,
        )
        is_history = (seen.k_positions >= 0) & ~in_window(seen.k_positions, seen.last, w)
        return pool(scores, is_history, self.kernel, self.pooling, self.edge_bias)


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """SnapKV's choice with more tokens for lower layers: see `budgets.pyramid`."""

    beta: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        pyramid(1, 1, self.window, self.window, self.beta)

    def budgets(self, n_layers: int, n_tokens: int) -> tuple[int, ...]:
        average = self.average(n_tokens)
        return pyramid(n_layers, n_tokens, average, self.window, self.beta)


@dataclass(frozen=True)
class Scheduled(SnapKV):
    """SnapKV's choice under any schedule of `budgets`, or one of your own."""

    schedule: Schedule = uniform

    def budgets(self, n_layers: int, n_tokens: int) -> tuple[int, ...]:
        return self.schedule(n_layers, n_tokens, self.average(n_tokens), self.window)


@dataclass(frozen=True)
class H2O(Method):
    """Keeps the keys that received most attention from all queries so far ("heavy hitters").

    Its scores read every query of the prompt, which costs as much as attention itself. Early keys
    are seen by more queries, so that a sum prefers them.
    """

    group: str = "mean"

    accumulates: ClassVar[bool] = True
    n_queries: ClassVar[int | None] = None

    def scores(self, seen: Observed) -> Tensor:
        positions = seen.q_positions, seen.k_positions
        return query_scores(seen.q, seen.k, *positions, seen.sliding_window, self.group)


@dataclass(frozen=True)
class StreamingLLM(Method):
    """Keeps the first `sinks` tokens and the latest ones, whatever they say.

    Tokens keep their original positions here, as in all methods of this chapter; the paper
    numbers the kept ones anew.
    """

    sinks: int = 4

    def scores(self, seen: Observed) -> Tensor:
        positions = seen.k_positions
        is_sink = (positions >= 0).cumsum(dim=2) <= self.sinks
        return positions.float().masked_fill(is_sink, torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class Random(Method):
    """Keeps the window and tokens drawn evenly from the rest: the control.

    A token's fate depends on `seed`, layer, KV head and position alone, so that rows of a batch,
    and a prompt read in chunks, are drawn alike.
    """

    seed: int = 0

    def scores(self, seen: Observed) -> Tensor:
        K, n = seen.k.shape[1], int(seen.last.max()) + 1
        heads = [torch.Generator().manual_seed(hash((self.seed, seen.layer, h))) for h in range(K)]
        draws = torch.stack([torch.rand(max(n, 1), generator=head) for head in heads])
        draws = draws.to(seen.k.device).expand(seen.k.shape[0], -1, -1)
        return draws.gather(2, seen.k_positions.clamp(min=0))


@dataclass(frozen=True)
class Full(Method):
    """Keeps everything: the plain cache, in the same clothes."""

    ratio: float | None = 1.0

    def scores(self, seen: Observed) -> Tensor:
        return torch.zeros(seen.k_positions.shape, device=seen.k.device)
