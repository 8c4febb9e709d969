"""What choosing costs and what it saves, side by side with a plain cache. Chapter 6."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpipe.cache import KVCache
from kvpipe.evaluate import cache_bytes, decode_s
from kvpipe.measure import time_s
from kvpipe.pyramid.cache import PyramidCache
from kvpipe.pyramid.methods import Method
from kvpipe.transformer import Transformer


@dataclass(frozen=True)
class SelectionTime:
    """Seconds of one prefill, and of the choices inside it."""

    n_tokens: int
    prefill_s: float
    selection_s: float

    @property
    def share(self) -> float:
        """The part of the prefill that was spent on choosing."""
        return self.selection_s / self.prefill_s


@torch.inference_mode()
def selection_time(
    model: Transformer, method: Method, n_tokens: int, repeats: int = 3
) -> SelectionTime:
    """Prefill of `n_tokens` random tokens with a `PyramidCache`: medians of `repeats` runs.

    The first run warms up and does not count.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (1, n_tokens), generator=generator)
    prefills, selections = [], []
    for _ in range(repeats + 1):
        cache = _TimedCache(model.config, method)
        prefills.append(time_s(lambda c=cache: model(tokens, cache=c, n_logits=1)))
        selections.append(cache.selection_s)
    middle = (statistics.median(seconds[1:]) for seconds in (prefills, selections))
    return SelectionTime(n_tokens, *middle)


class _TimedCache(PyramidCache):
    """A compressed cache that adds up the time of its choices."""

    selection_s = 0.0

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        choose = super().observe
        self.selection_s += time_s(lambda: choose(layer, q, q_positions))


@dataclass(frozen=True)
class DecodeCost:
    """One way to remember a context, while decoding."""

    name: str
    step_s: float  # median seconds of a decoded token
    speedup: float  # over the plain cache
    nbytes: int
    share: float  # of the plain cache's bytes


def decode_costs(
    model: Transformer,
    methods: Mapping[str, Method | tuple[Method, int]],
    n_context: int,
    repeats: int = 9,
) -> list[DecodeCost]:
    """Speed and bytes of methods beside a plain cache ("full"), all taking turns.

    A method may come with a number of bits to store in.
    """
    pairs = {name: m if isinstance(m, tuple) else (m, None) for name, m in methods.items()}
    makers = {"full": KVCache} | {
        name: lambda method=method, bits=bits: PyramidCache(model.config, method, bits=bits)
        for name, (method, bits) in pairs.items()
    }
    seconds = decode_s({n: (model, make) for n, make in makers.items()}, n_context, repeats=repeats)
    steps = {name: statistics.median(samples) for name, samples in seconds.items()}
    held = {name: cache_bytes(model, n_context, make) for name, make in makers.items()}
    return [
        DecodeCost(n, steps[n], steps["full"] / steps[n], held[n], held[n] / held["full"])
        for n in makers
    ]
