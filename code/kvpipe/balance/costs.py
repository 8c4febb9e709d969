r"""What each layer and module of a model costs: forward FLOPs of one sequence. Chapter 4.

Two FLOPs per multiply-add. For T tokens, C width, H query and K key/value heads of size D:

- query and output projection: 2 T C H D each;
- key and value projections together: 4 T C K D, which sharing a layer removes;
- scores and weighted sum: 4 H D per visible pair of query and key;
- gated feed-forward network: 6 T C F; LM head: 2 T C V.

With D = C / H and r = H / K the projections are 4 C² + 4 C² / r per token. Norms, rotary
embedding and softmax count as 0, well under 1 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvpipe.balance.architecture import Architecture, Layer, read_architecture, read_object

CAUSAL = {
    "half": "half of all pairs, T² / 2; with a window w, T w - w² / 2 (Megatron-LM)",
    "full": "all T² pairs, visible or not (torchtitan, PaLM, torch.utils.flop_counter)",
    "exact": "the visible pairs, each once: T (T + 1) / 2 without a window",
}
EMBEDDING = {
    "lookup": "0: rows are copied",
    "matrix": "2 T C V: counted as if it were a product (6 N with all parameters)",
}
HEAD = {"matrix": "2 T C V", "none": "0: the head is left out or placed elsewhere"}
LAYER_COSTS = "kvpipe-layer-costs"  # the `format` of a file that lists costs instead of sizes


@dataclass(frozen=True)
class Conventions:
    """How FLOPs are counted; two published numbers agree only under the same conventions."""

    causal: str = "half"  # a key of CAUSAL
    embedding: str = "lookup"  # a key of EMBEDDING
    head: str = "matrix"  # a key of HEAD
    backward: float = 2.0  # backward FLOPs per forward FLOP
    recompute: bool = False  # the backward runs the forward once more

    def __post_init__(self) -> None:
        for name, choices in (("causal", CAUSAL), ("embedding", EMBEDDING), ("head", HEAD)):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
        if not (math.isfinite(self.backward) and self.backward >= 0):
            raise ValueError(f"backward is {self.backward}; it must be at least 0")


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer, in FLOPs or any other unit that the whole model uses."""

    modules: Mapping[str, float]  # name -> cost; the sum is the layer's
    saving: float  # what sharing removes; 0 where nothing can be shared
    kind: str  # only layers of one kind may read each other's keys and values; "" = cannot share
    kv_elements: int = 0  # keys and values cached per token

    @property
    def total(self) -> float:
        return math.fsum(self.modules.values())


@dataclass(frozen=True)
class Extra:
    """A module beside the layers, such as the head, and the stage it sits on."""

    name: str
    cost: float
    stage: int  # negative counts from the end


@dataclass(frozen=True)
class ModelCosts:
    """All costs of one model for one sequence of `n_tokens`."""

    name: str
    layers: tuple[LayerCost, ...]
    extras: tuple[Extra, ...]
    n_tokens: int
    width: int  # elements of a hidden state, for what crosses a stage boundary
    conventions: Conventions = Conventions()
    unit: str = "FLOPs"
    fingerprint: str = ""  # of the architecture; empty for a list of costs

    @property
    def total(self) -> float:
        return math.fsum(layer.total for layer in self.layers) + math.fsum(
            extra.cost for extra in self.extras
        )


def visible_pairs(n_tokens: int, window: int | None, causal: str) -> float:
    """Pairs of query and key that are counted, by a convention of `CAUSAL`."""
    w = min(window or n_tokens, n_tokens)
    if causal == "full":
        return float(n_tokens * n_tokens)
    diagonal = w / 2 if causal == "exact" else 0.0
    return n_tokens * w - w * w / 2 + diagonal


def layer_cost(layer: Layer, n_tokens: int, conventions: Conventions | None = None) -> LayerCost:
    """Forward FLOPs of one layer for one sequence, module by module."""
    conventions = conventions or Conventions()
    T, C, H, K, D = n_tokens, layer.width, layer.n_heads, layer.n_kv_heads, layer.head_size
    modules = {
        "query": 2.0 * T * C * H * D,
        "key and value": 4.0 * T * C * K * D,
        "scores": 4.0 * H * D * visible_pairs(T, layer.window, conventions.causal),
        "output": 2.0 * T * C * H * D,
        "feed-forward": 6.0 * T * C * (layer.n_active * layer.ffn_width + layer.shared_ffn_width),
    }
    if layer.n_experts:
        gate = 1 if layer.shared_ffn_width else 0  # how much of the shared expert is added
        modules["router"] = 2.0 * T * C * (layer.n_experts + gate)
    kind = f"{K} x {D}, window {layer.window or 'unlimited'}"
    return LayerCost(modules, modules["key and value"], kind, 2 * K * D)


def model_costs(
    source: str | Path | Mapping | Architecture,
    n_tokens: int,
    conventions: Conventions | None = None,
) -> ModelCosts:
    """Costs of every layer, the embedding (first stage) and the head (last stage).

    `source` is what `read_architecture` reads, or a list of layer costs (see
    `listed_costs`). Raises ValueError for what it cannot read and for n_tokens below 1.
    """
    conventions = conventions or Conventions()
    if not isinstance(n_tokens, int) or isinstance(n_tokens, bool) or n_tokens < 1:
        raise ValueError(f"the sequence has {n_tokens!r} tokens; it needs at least 1")
    if (listed := _list_of_costs(source)) is not None:
        return listed_costs(listed, n_tokens, conventions)
    model = source if isinstance(source, Architecture) else read_architecture(source)
    matrix = 2.0 * n_tokens * model.width * model.vocab_size
    extras = (
        Extra("embedding", matrix if conventions.embedding == "matrix" else 0.0, 0),
        Extra("head", matrix if conventions.head == "matrix" else 0.0, -1),
    )
    layers = tuple(layer_cost(layer, n_tokens, conventions) for layer in model.layers)
    return ModelCosts(
        model.name, layers, extras, n_tokens, model.width, conventions, "FLOPs", model.fingerprint
    )


def _list_of_costs(source: object) -> Mapping | None:
    if isinstance(source, str | Path) and Path(source).is_file():
        source = read_object(Path(source))
    is_list = isinstance(source, Mapping) and source.get("format") == LAYER_COSTS
    return source if is_list else None


def listed_costs(
    content: Mapping, n_tokens: int, conventions: Conventions | None = None
) -> ModelCosts:
    """Costs of any model, such as a hybrid, from a list with one entry per layer.

    `content` has "format": "kvpipe-layer-costs", "layers": [{"cost", "saving", "kind",
    "kv_elements"}, ...], and optionally "name", "width", "unit" and "extras": [{"name", "cost",
    "stage"}, ...]. Only "cost" is needed in a layer; one without "saving" cannot share.
    """
    rows = content.get("layers")
    if not isinstance(rows, list) or not rows:
        raise ValueError('a list of layer costs needs "layers": one entry per layer')
    layers = tuple(_listed_layer(row, index) for index, row in enumerate(rows))
    extras = tuple(
        Extra(
            str(row.get("name", "extra")),
            number(row.get("cost"), f"the cost of extra {index}"),
            int(row.get("stage", -1)),
        )
        for index, row in enumerate(content.get("extras") or ())
    )
    return ModelCosts(
        str(content.get("name", "listed costs")), layers, extras, n_tokens,
        int(content.get("width", 0)), conventions or Conventions(),
        str(content.get("unit", "FLOPs")),
    )  # fmt: skip


def _listed_layer(row: object, index: int) -> LayerCost:
    row = row if isinstance(row, Mapping) else {"cost": row}
    cost = number(row.get("cost"), f"the cost of layer {index}")
    saving = number(row.get("saving", 0), f"the saving of layer {index}")
    if saving > cost:
        raise ValueError(f"layer {index} costs {cost:g}, but sharing it would save {saving:g}")
    kind = str(row.get("kind", "attention")) if saving else ""
    kv = row.get("kv_elements", 0)
    modules = {"key and value": saving, "rest": cost - saving} if saving else {"rest": cost}
    return LayerCost(modules, saving, kind, int(number(kv, f"kv_elements of layer {index}")))


def number(value: object, what: str) -> float:
    """`value` as a finite number of at least 0; ValueError names `what` where it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} is {value!r}; it must be a finite number of at least 0")
    return float(value)
