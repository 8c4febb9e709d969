r"""A decoder-only transformer meant to be read. Chapter 1, notebooks/01_transformer.ipynb.

The Llama family: RMSNorm before each half of a block, rotary positions, grouped-query attention,
SwiGLU (Touvron et al. 2023, section 2.2), with the variations of Qwen2, Qwen3 and Mistral. Every
tensor is laid out (B, heads, T, D); the letters are B batch, T tokens, H query heads, K KV heads,
D head size, C model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvpipe.attention import attention
from kvpipe.cache import Cache, Seen
from kvpipe.config import Config
from kvpipe.linear import Linear, linear, together

# (q, k, v, q_positions, k_positions, window) -> out: ring attention is another one of these.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, "int | None"], Tensor]


class RMSNorm(nn.Module):
    r"""$x \cdot g / \sqrt{\mathrm{mean}(x^2) + \epsilon}$ over the last axis (arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary_frequencies(config: Config, device: torch.device | None = None) -> Tensor:
    r"""Radians per position of each rotary pair, $\theta^{-2i/D}$: (D/2,), float32.

    RoFormer (arXiv:2104.09864), equation 15; long wavelengths are stretched as in Llama 3.
    """
    i = torch.arange(0, config.head_size, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / config.rope_theta ** (i / config.head_size)
    s = config.rope_scaling
    if s is None:
        return frequencies
    turns = frequencies * s.original_context / (2 * math.pi)  # within the original context
    kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
    kept = kept.clamp(0, 1)
    return frequencies * (kept + (1 - kept) / s.factor)


def rotary(positions: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (B, 1, T, D) that `rotate` applies to every head."""
    angles = positions[..., None].float() * rotary_frequencies(config, positions.device)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of x (B, heads, T, D) by its angle."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Attention(nn.Module):
    """Grouped-query attention of one layer, reading the keys and values of layer `source`."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        c = config
        self.layer, self.source, self.window = layer, c.kv_source[layer], c.windows[layer]
        self.head_size = c.head_size
        self.query = Linear(c.width, c.n_heads * c.head_size, bias=c.qkv_bias)
        self.query_norm = RMSNorm(c.head_size, c.norm_eps) if c.qk_norm else nn.Identity()
        if self.source == layer:
            self.key = Linear(c.width, c.n_kv_heads * c.head_size, bias=c.qkv_bias)
            self.value = Linear(c.width, c.n_kv_heads * c.head_size, bias=c.qkv_bias)
            self.key_norm = RMSNorm(c.head_size, c.norm_eps) if c.qk_norm else nn.Identity()
        self.output = Linear(c.n_heads * c.head_size, c.width, bias=False)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        turn: tuple[Tensor, Tensor],
        kv: dict[int, Seen],
        cache: Cache | None,
        attend: Attend,
    ) -> Tensor:
        if self.source == self.layer:
            q, k, v = map(self._heads, together(x, self.query, self.key, self.value))
            k = rotate(self.key_norm(k), *turn)
            is_new = cache is None
            kv[self.layer] = (
                (k, v, positions) if is_new else cache.append(self.layer, k, v, positions)
            )
        else:
            q = self._heads(self.query(x))
        q = rotate(self.query_norm(q), *turn)
        out = attend(q, *kv[self.source][:2], positions, kv[self.source][2], self.window)
        if cache is not None:
            cache.observe(self.layer, q, positions)
        return self.output(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(B, T, heads * D) -> (B, heads, T, D)."""
        B, T, _ = x.shape
        return x.view(B, T, -1, self.head_size).transpose(1, 2)


class FeedForward(nn.Module):
    r"""SwiGLU, $W_{down}(\mathrm{silu}(W_{gate}x) \odot W_{up}x)$ (arXiv:2002.05202)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = Linear(config.width, config.ffn_width, bias=False)
        self.up = Linear(config.width, config.ffn_width, bias=False)
        self.down = Linear(config.ffn_width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: each half reads a normalised copy of the residual stream and adds to it."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = Attention(config, layer)
        self.ffn_norm = RMSNorm(config.width, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, *context) -> Tensor:
        x = x + self.attention(self.attention_norm(x), *context)
        return x + self.ffn(self.ffn_norm(x))


class Stage(nn.Module):
    """A range of layers; with the embedding if it is the first, norm and head if the last.

    With tied embeddings a stage that is first and last shares one matrix; a last stage that is
    not the first owns a copy of it.
    """

    def __init__(self, config: Config, layers: range) -> None:
        super().__init__()
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= config.n_layers:
            raise ValueError(f"{layers} is not a run of layers within 0..{config.n_layers - 1}")
        for layer in layers:
            if config.kv_source[layer] not in layers:
                raise ValueError(
                    f"layer {layer} reads keys and values of layer {config.kv_source[layer]}, "
                    f"which is outside {layers}; put both on the same stage"
                )
        self.config, self.layers = config, layers
        self.is_first, self.is_last = layers.start == 0, layers.stop == config.n_layers
        self.embedding = nn.Embedding(config.vocab_size, config.width) if self.is_first else None
        self.blocks = nn.ModuleDict({str(layer): Block(config, layer) for layer in layers})
        self.norm = RMSNorm(config.width, config.norm_eps) if self.is_last else None
        owns_head = self.is_last and not (self.is_first and config.tied_embeddings)
        self.head = Linear(config.width, config.vocab_size, bias=False) if owns_head else None

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        cache: Cache | None = None,
        attend: Attend = attention,
        n_logits: int | None = None,
    ) -> Tensor:
        """Token ids (B, T) on the first stage, else hidden states (B, T, C), to the next stage's.

        `positions` (B, T) defaults to the next ones after `cache.seen`; -1 marks padding. The last
        stage returns logits (B, T, V), of the last `n_logits` tokens only if that is given.
        """
        positions = self._positions(x, positions, cache)
        if self.is_first:
            x = self.embedding(self._checked(x))
        turn = tuple(part.to(x.dtype) for part in rotary(positions, self.config))
        kv: dict[int, Seen] = {}
        for block in self.blocks.values():
            x = block(x, positions, turn, kv, cache, attend)
        if not self.is_last:
            return x
        return self.logits(x if n_logits is None else x[:, -n_logits:])

    def logits(self, x: Tensor) -> Tensor:
        """The final norm and the head: (B, T, C) -> (B, T, V)."""
        return linear(
            self.norm(x), self.embedding.weight if self.head is None else self.head.weight
        )

    def _positions(self, x: Tensor, positions: Tensor | None, cache: Cache | None) -> Tensor:
        B, T = x.shape[:2]
        if positions is None:
            start = 0 if cache is None else cache.seen
            positions = torch.arange(start, start + T, device=x.device).expand(B, T)
        if positions.shape != (B, T):
            raise ValueError(f"positions {tuple(positions.shape)} do not match input {(B, T)}")
        if B * T and (end := int(positions.max()) + 1) > self.config.context:
            raise ValueError(
                f"position {end - 1} is outside the model's context of {self.config.context} "
                "tokens; shorten the input"
            )
        return positions

    def _checked(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise ValueError(
                f"token ids of shape {tuple(tokens.shape)}; expected (B, T) with at least one token"
            )
        low, high = (int(t) for t in tokens.aminmax())
        if low < 0 or high >= self.config.vocab_size:
            raise ValueError(
                f"token id {low if low < 0 else high} is outside the vocabulary "
                f"0..{self.config.vocab_size - 1}"
            )
        return tokens


class Transformer(Stage):
    """The whole model: a stage that owns every layer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, range(config.n_layers))
