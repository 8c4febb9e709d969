"""A cache that keeps a share: the protocol of `kvpipe.cache`, with a method inside. Chapter 6.

After the attention of a prompt each layer chooses among its tokens, so the prompt itself is
computed exactly. Kept keys stay rotated to where they stood in the text, and new tokens go on at
their true positions: attention sees gaps and needs no other mask than before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvpipe.cache import Seen
from kvpipe.config import Config
from kvpipe.pyramid.methods import Method, Observed
from kvpipe.pyramid.quantize import check_bits
from kvpipe.pyramid.selection import select, take
from kvpipe.pyramid.store import LayerStore


class PyramidCache:
    """Keys and values of the tokens that `method` keeps, chosen per layer, row and KV head.

    A layer chooses after every forward of two or more tokens: a prompt, a chunk of a long one, a
    later turn. With `later_turns=False` only after the first of them, as in the paper; then what
    follows is added. Decoded tokens are added; with `every=N` a layer chooses anew when N have come
    in. With `bits` (8 or 4) what a choice keeps is stored quantised, and what came since is not.

    Budgets follow each row's own number of tokens; a layer holds as many as its longest row keeps,
    the others padded on the left. A layer that shares another's keys and values (`kv_source`)
    stores nothing: budgets are split over the layers that store. Raises ValueError for options out
    of range, `LayerStore` for a batch of another size.
    """

    def __init__(
        self,
        config: Config,
        method: Method,
        *,
        later_turns: bool = True,
        every: int | None = None,
        bits: int | None = None,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every is {every} tokens; it must be 1 or more, or None: only add")
        if bits is not None:
            check_bits(bits)
        self.config, self.method = config, method
        self.later_turns, self.every, self.bits = later_turns, every, bits
        self._stores: dict[int, LayerStore] = {}
        self._notes: dict[int, _Notes] = {}
        self._plans: dict[int, tuple[int, ...]] = {}  # tokens of a row -> what each layer keeps

    @property
    def seen(self) -> int:
        return max((notes.n_seen for notes in self._notes.values()), default=0)

    def seen_by(self, layer: int) -> int:
        """Tokens appended to `layer` so far, kept or not."""
        return self._notes[layer].n_seen if layer in self._notes else 0

    @property
    def n_rows(self) -> int:
        """Rows of the batch; 0 before the first append."""
        return max((len(notes.n_tokens) for notes in self._notes.values()), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values held, with the scales and minima of quantised ones."""
        return sum(store.nbytes for store in self._stores.values())

    @property
    def extra_bytes(self) -> int:
        """Bytes beside keys and values: positions, remembered queries, accumulated scores."""
        positions = sum(store.positions.nbytes for store in self._stores.values())
        return positions + sum(notes.nbytes for notes in self._notes.values())

    @property
    def lengths(self) -> dict[int, int]:
        """Tokens held by every layer that stores."""
        return {layer: store.length for layer, store in self._stores.items()}

    def positions(self, layer: int) -> Tensor | None:
        """Positions of what `layer` holds: (B, S), or (B, K, S) once it has chosen."""
        return self._stores[layer].positions if layer in self._stores else None

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        if layer not in self._stores:
            if layer not in self.config.kv_layers:
                raise ValueError(f"layer {layer} stores nothing; {self.config.kv_layers} do")
            self._stores[layer], self._notes[layer] = LayerStore(self.bits), _Notes(positions)
        seen = self._stores[layer].append(k, v, positions)
        self._notes[layer].count(positions)
        return seen

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        """Choose, if it is time to. Of the queries the last `n_queries(layer)` are enough."""
        if not self.n_queries(layer):
            return
        notes, method = self._notes[layer], self.method
        q, q_positions = notes.with_earlier(q, q_positions)
        if self.every is not None and method.n_queries:
            notes.remember(q, q_positions, method.n_queries)
        if not (self._is_due(layer) or method.accumulates):
            return
        seen = self._observed(layer, q, q_positions)
        scores = notes.added(method.scores(seen)) if method.accumulates else None
        if self._is_due(layer):
            self._choose(layer, seen, scores)

    def n_queries(self, layer: int) -> int:
        """How many of the last queries `observe` reads after this append; 0: it does nothing."""
        if layer not in self._stores:
            return 0
        if not (self._is_due(layer) or self.every is not None):
            return 0
        n, n_new = self.method.n_queries, self._notes[layer].n_new
        return n_new if n is None else max(1, min(n, n_new))

    def index_select(self, rows: Tensor) -> None:
        """Go on with `rows` of the batch, such as the surviving beams of a search."""
        for layer, store in self._stores.items():
            store.index_select(rows)
            self._notes[layer].index_select(rows)

    def forget(self, layer: int) -> None:
        """Empty one layer."""
        self._stores.pop(layer, None)
        self._notes.pop(layer, None)

    def _is_due(self, layer: int) -> bool:
        notes = self._notes[layer]
        if notes.n_new > 1:
            return self.later_turns or not notes.has_chosen
        return self.every is not None and notes.n_decoded >= self.every

    def _observed(self, layer: int, q: Tensor, q_positions: Tensor) -> Observed:
        store, notes, window = self._stores[layer], self._notes[layer], self.config.windows[layer]
        k, positions = store.all()[0], store.positions
        if positions.ndim == 2:
            positions = positions[:, None].expand(-1, k.shape[1], -1)
        if window is not None:  # what no later query will see is not worth a place
            is_out = positions <= notes.last[:, None, None] + 1 - window
            positions = positions.masked_fill(is_out, -1)
        return Observed(q, k, q_positions, positions, notes.last, layer, window)

    def _choose(self, layer: int, seen: Observed, scores: Tensor | None) -> None:
        store, notes = self._stores[layer], self._notes[layer]
        notes.has_chosen, notes.n_decoded = True, 0
        counts = self._counts(layer)
        if store.length <= min(counts):
            if self.bits is not None:
                store.replace(*store.all(), store.positions)
            return
        scores = self.method.scores(seen) if scores is None else scores
        counts = torch.tensor(counts, device=seen.k.device)
        kept = select(scores, seen.k_positions, notes.last, counts, self.method.window)
        k, v = (take(x, kept.indices) for x in store.all())
        store.replace(k, v, kept.positions)
        notes.keep(kept.indices)

    def _counts(self, layer: int) -> list[int]:
        """Tokens that `layer` may keep of every row."""
        storing = self.config.kv_layers
        tokens = self._notes[layer].n_tokens.tolist()
        for n in set(tokens) - set(self._plans) - {0}:
            self._plans[n] = self.method.budgets(len(storing), n)
        return [self._plans[n][storing.index(layer)] if n else 0 for n in tokens]


class _Notes:
    """What a layer remembers about its rows beside their keys and values."""

    def __init__(self, positions: Tensor) -> None:
        self.n_seen = 0  # tokens appended, padding included
        self.n_new = 0  # of those, in the last append
        self.n_decoded = 0  # appended one at a time since the last choice
        self.has_chosen = False
        self.n_tokens = positions.new_zeros(positions.shape[0])  # (B,), without padding
        self.last = torch.full_like(self.n_tokens, -1)  # (B,), latest position
        self._queries: tuple[Tensor, Tensor] | None = None  # the last ones with positions
        self._scores: Tensor | None = None  # (B, K, S), accumulated so far

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*(self._queries or ()), self._scores) if x is not None)

    def count(self, positions: Tensor) -> None:
        """Take note of an append at `positions` (B, T)."""
        T = positions.shape[1]
        self.n_new, self.n_seen = T, self.n_seen + T
        self.n_decoded += T == 1
        self.n_tokens = self.n_tokens + (positions >= 0).sum(dim=1)
        self.last = torch.maximum(self.last, positions.amax(dim=1))

    def with_earlier(self, q: Tensor, q_positions: Tensor) -> tuple[Tensor, Tensor]:
        """The remembered queries, then these."""
        if self._queries is None:
            return q, q_positions
        earlier, earlier_positions = self._queries
        return torch.cat([earlier, q], dim=2), torch.cat([earlier_positions, q_positions], dim=1)

    def remember(self, q: Tensor, q_positions: Tensor, n: int) -> None:
        """Hold the last n queries for a choice during decoding."""
        self._queries = q[:, :, -n:].clone(), q_positions[:, -n:].clone()

    def added(self, scores: Tensor) -> Tensor:
        """`scores` (B, K, S) plus those accumulated for the first tokens of them."""
        if self._scores is not None:
            scores[:, :, : self._scores.shape[2]] += self._scores
        self._scores = scores
        return scores

    def keep(self, indices: Tensor) -> None:
        """Accumulated scores of the kept tokens only."""
        if self._scores is not None:
            self._scores = self._scores.gather(2, indices)

    def index_select(self, rows: Tensor) -> None:
        self.n_tokens = self.n_tokens.index_select(0, rows)
        self.last = self.last.index_select(0, rows)
        if self._queries is not None:
            self._queries = tuple(part.index_select(0, rows) for part in self._queries)
        if self._scores is not None:
            self._scores = self._scores.index_select(0, rows)
