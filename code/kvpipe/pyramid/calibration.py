r"""How widely each layer looks, measured on text: weights for budgets. Chapter 6.

The entropy $-\sum_i a_i \log a_i$ of a query's attention, in nats: $\log n$ if it looks at n keys
alike, 0 if at one. PyramidKV's ablation (arXiv:2406.02069, table 4) finds budgets in proportion to
it worse than the straight line.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvpipe.attention import attention_weights
from kvpipe.cache import KVCache, Seen
from kvpipe.transformer import Transformer


@torch.inference_mode()
def attention_entropy(model: Transformer, tokens: Tensor, n_queries: int = 64) -> tuple[float, ...]:
    """Mean entropy of every storing layer's attention, by the last `n_queries` of tokens (B, T).

    In the order of `Config.kv_layers`, as `budgets.proportional` takes it. Raises ValueError for
    fewer than one query.
    """
    if n_queries < 1:
        raise ValueError(f"n_queries is {n_queries}; the entropy needs 1 or more")
    watch = _EntropyWatch(model, n_queries)
    model(tokens, cache=watch, n_logits=1)
    return tuple(watch.entropies[layer] for layer in model.config.kv_layers)


class _EntropyWatch(KVCache):
    """A plain cache that looks at the attention of the last queries."""

    def __init__(self, model: Transformer, n_queries: int) -> None:
        super().__init__()
        self.windows, self.n_queries = model.config.windows, n_queries
        self.entropies: dict[int, float] = {}
        self._held: tuple[int, Tensor, Tensor] | None = None

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        seen = super().append(layer, k, v, positions)
        self._held = layer, seen[0], seen[2]
        return seen

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        held, k, k_positions = self._held
        if layer != held:  # it reads another layer's keys, which have been looked at
            return
        n = self.n_queries
        weights = attention_weights(
            q[:, :, -n:], k, q_positions[:, -n:], k_positions, self.windows[layer]
        )
        entropy = torch.special.entr(weights).sum(dim=-1)
        is_token = (q_positions[:, -n:] >= 0)[:, None].expand_as(entropy)
        self.entropies[layer] = entropy[is_token].mean().item()
