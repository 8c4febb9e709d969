"""A compressed cache under Hugging Face models. Support module, for chapter 6.

    with compress(model, PyramidKV(budget=128)):
        model.generate(**inputs, max_new_tokens=64)

The memory is the book's `PyramidCache`. Hooks hand it positions and queries and give each layer a
mask made from the positions it holds, because one mask for all layers, as transformers builds it,
fits none that chose for itself. Made for transformers 5.24 and its names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from kvpipe.attention import visible
from kvpipe.config import SUPPORTED, Config
from kvpipe.pyramid import Method, PyramidCache
from kvpipe.transformer import rotate

ATTENTION = ("sdpa", "eager")
_compressed: set[int] = set()  # ids of the base models that are inside `compress`


@contextmanager
def compress(
    model: PreTrainedModel,
    method: Method,
    *,
    later_turns: bool = True,
    every: int | None = None,
    bits: int | None = None,
) -> Iterator[None]:
    """Inside, every new cache of `model` keeps only what `method` chooses; outside, nothing stays.

    Covers Llama, Mistral, Qwen2 and Qwen3 with "sdpa" or "eager" attention, left padding, later
    turns on the same cache, beams and `prefill_chunk_size`. Options as in `PyramidCache`; a cache
    made inside must be continued inside. Raises ValueError for another architecture or attention,
    a model that is compressed already, and a cache that holds tokens it did not choose from.
    """
    base = _checked(model)
    state = _State(_config(model), method, later_turns, every, bits)
    state.new_cache()  # wrong options show here, not in the first forward
    with ExitStack() as stack:
        _compressed.add(id(base))
        stack.callback(_compressed.discard, id(base))
        hook = base.register_forward_pre_hook(partial(_before_model, state), with_kwargs=True)
        stack.callback(hook.remove)
        for layer in base.layers:
            attention = layer.self_attn
            before = partial(_before_attention, state)
            after = partial(_after_attention, state)
            for hook in (
                attention.register_forward_pre_hook(before, with_kwargs=True),
                attention.register_forward_hook(after, with_kwargs=True),
            ):
                stack.callback(hook.remove)
        yield


def pyramid_cache(cache: Cache) -> PyramidCache:
    """The compressed memory behind a cache that came out of `compress`: its bytes and positions.

    Raises ValueError for a cache made elsewhere.
    """
    first = cache.layers[0] if cache.layers else None
    if not isinstance(first, CompressedLayer):
        raise ValueError("this cache was not made inside compress(); it keeps every token")
    return first.memory


class CompressedLayer(CacheLayerMixin):
    """One layer of a transformers cache whose tokens lie in a `PyramidCache`.

    To transformers it is as long as the tokens it has seen: positions and masks count those.
    """

    def __init__(self, memory: PyramidCache, layer: int) -> None:
        super().__init__()
        self.memory, self.layer = memory, layer
        self.new_positions: Tensor | None = None  # (B, T), set before every forward
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the memory grows by itself."""

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        if self.new_positions is None:
            raise ValueError("a compressed cache was used outside compress(); continue it inside")
        k, v, _ = self.memory.append(self.layer, key_states, value_states, self.new_positions)
        self.new_positions = None
        return k, v

    def get_seq_length(self) -> int:
        return self.memory.seen_by(self.layer)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.memory.forget(self.layer)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows; the memory is shared by all layers, so the first does it for all."""
        if self.layer == self.memory.config.kv_layers[0]:
            self.memory.index_select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        if self.layer == self.memory.config.kv_layers[0] and self.memory.seen:
            rows = self.memory.n_rows
            self.memory.index_select(torch.arange(rows).repeat_interleave(repeats))


@dataclass
class _State:
    """What the hooks of one `compress` share."""

    config: Config
    method: Method
    later_turns: bool
    every: int | None
    bits: int | None
    positions: Tensor | None = field(default=None, init=False)  # (B, T) of the forward that runs

    def new_cache(self) -> PyramidCache:
        options = {"later_turns": self.later_turns, "every": self.every, "bits": self.bits}
        return PyramidCache(self.config, self.method, **options)

    def adopt(self, cache: Cache) -> None:
        """Put compressed layers into an empty cache; let one that has them pass."""
        if cache.layers and isinstance(cache.layers[0], CompressedLayer):
            return
        if cache.get_seq_length() or getattr(cache, "offloading", False):
            raise ValueError(
                f"the {type(cache).__name__} holds {cache.get_seq_length()} tokens that were never "
                "chosen from, or is offloaded; start with an empty DynamicCache, or with none"
            )
        if type(cache) is not DynamicCache:
            raise ValueError(f"a {type(cache).__name__} cannot be compressed; use a DynamicCache")
        memory = self.new_cache()
        cache.layers = [CompressedLayer(memory, i) for i in range(self.config.n_layers)]
        cache.layer_class_to_replicate = None


def _before_model(state: _State, model: nn.Module, args: tuple, kwargs: dict) -> tuple:
    """Give the forward a compressed cache and the positions of its tokens."""
    ids = kwargs.get("input_ids")
    if ids is None:
        ids = args[0] if args else kwargs.get("inputs_embeds")
    cache = kwargs.pop("past_key_values", None)
    cache = kwargs.get("cache") if cache is None else cache
    if cache is None:
        use_cache = kwargs.get("use_cache")
        if not (model.config.use_cache if use_cache is None else use_cache):
            state.positions = None
            return args, kwargs
        cache = DynamicCache(config=model.config)
    state.adopt(cache)
    kwargs["cache"] = cache
    state.positions = _positions(ids, cache, kwargs)
    for layer in cache.layers:
        layer.new_positions = state.positions
    return args, kwargs


def _positions(ids: Tensor, cache: Cache, kwargs: dict) -> Tensor:
    """Where the new tokens stand, (B, T): as the rotation counts, -1 for padding."""
    B, T = ids.shape[:2]
    positions, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
    if positions is None:
        positions = torch.arange(T, device=ids.device) + cache.get_seq_length()
    positions = positions.expand(B, T)
    if mask is None:
        return positions
    if mask.ndim != 2:
        raise ValueError(
            f"an attention mask of shape {tuple(mask.shape)}; compressed layers differ in length "
            "and need the two-dimensional one, (rows, tokens)"
        )
    return positions.masked_fill(mask[:, -T:] == 0, -1)


def _before_attention(state: _State, attention: nn.Module, args: tuple, kwargs: dict) -> tuple:
    """A mask for what this layer holds; a layer that holds nothing yet keeps transformers' own."""
    memory = _memory(kwargs)
    if memory is None or (held := memory.positions(attention.layer_idx)) is None:
        return args, kwargs
    q_positions = state.positions
    new = q_positions if held.ndim == 2 else q_positions[:, None].expand(-1, held.shape[1], -1)
    k_positions = torch.cat([held, new], dim=-1)
    mask = visible(q_positions, k_positions, memory.config.windows[attention.layer_idx])
    return args, kwargs | {"attention_mask": _as_transformers_wants(mask, attention, kwargs)}


def _as_transformers_wants(mask: Tensor, attention: nn.Module, kwargs: dict) -> Tensor | None:
    """Booleans for sdpa, numbers to add for eager; None where one query sees everything."""
    if mask.shape[2] == 1 and bool(mask.all()):
        return None
    mask = mask | ~mask.any(dim=-1, keepdim=True)  # padding looks at everything, not at NaN
    if mask.shape[1] > 1:
        mask = mask.repeat_interleave(attention.num_key_value_groups, dim=1)
    if attention.config._attn_implementation == "sdpa":
        return mask
    dtype = kwargs["hidden_states"].dtype
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(
        ~mask, torch.finfo(dtype).min
    )


def _after_attention(
    state: _State, attention: nn.Module, args: tuple, kwargs: dict, output: object
) -> None:
    """Show the layer's memory the queries it wants to choose by."""
    memory = _memory(kwargs)
    if memory is None or not (n := memory.n_queries(attention.layer_idx)):
        return
    q = _queries(attention, kwargs["hidden_states"], kwargs["position_embeddings"], n)
    memory.observe(attention.layer_idx, q, state.positions[:, -n:])


def _queries(attention: nn.Module, hidden: Tensor, turn: tuple[Tensor, Tensor], n: int) -> Tensor:
    """The last n rotated queries (B, H, n, D), computed again from the layer's input."""
    B = hidden.shape[0]
    q = attention.q_proj(hidden[:, -n:]).view(B, n, -1, attention.head_dim)
    if hasattr(attention, "q_norm"):
        q = attention.q_norm(q)
    cos, sin = (part[:, None, -n:] for part in turn)
    first, second = sin.chunk(2, dim=-1)
    return rotate(q.transpose(1, 2), cos, torch.cat([-first, second], dim=-1))


def _memory(kwargs: dict) -> PyramidCache | None:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    return None if cache is None else pyramid_cache(cache)


def _checked(model: PreTrainedModel) -> nn.Module:
    """The stack of layers inside `model`; ValueError if this module cannot compress it."""
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in SUPPORTED:
        raise ValueError(f"{kind!r} is not supported; supported are {', '.join(SUPPORTED)}")
    implementation = model.config._attn_implementation
    if implementation not in ATTENTION:
        raise ValueError(
            f"attention {implementation!r} is not supported; load the model with "
            f"attn_implementation={' or '.join(map(repr, ATTENTION))}"
        )
    base = model.base_model
    if id(base) in _compressed:
        raise ValueError("this model is compressed already; leave the other compress() first")
    return base


def _config(model: PreTrainedModel) -> Config:
    """Layers, heads and windows; what transformers computes by itself (rotation, biases) is left
    out, so that it cannot be refused."""
    hf = model.config.to_dict()
    computed_there = ("rope_parameters", "rope_scaling", "attention_bias", "mlp_bias")
    left_out = (*computed_there, "quantization_config", "pretraining_tp", "hidden_act")
    return Config.from_hf({name: value for name, value in hf.items() if name not in left_out})
