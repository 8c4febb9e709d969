"""The shape of a decoder-only language model, as data. Chapter 1, no torch.

Reads the `config.json` of Llama, Qwen2, Qwen3 and Mistral checkpoints. What it does not know how
to compute faithfully it refuses by name, because a wrong logit looks like a right one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

# What a family's reference code assumes where its config.json is silent (transformers 5.24).
DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "qwen2": {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "mistral": {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
}
SUPPORTED = tuple(DEFAULTS)


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of the slow rotary frequencies (Llama 3 report, section 3.2)."""

    factor: float  # how much longer the slow wavelengths become
    low_freq_factor: float  # wavelengths above original_context / this are divided fully
    high_freq_factor: float  # wavelengths below original_context / this stay as they are
    original_context: int  # tokens, the context of pre-training


@dataclass(frozen=True)
class Config:
    """Sizes and switches of one model. Lengths are in tokens, widths in elements."""

    vocab_size: int  # rows of the embedding
    width: int  # C, elements of the residual stream
    n_layers: int  # L
    n_heads: int  # H, query heads
    n_kv_heads: int  # K, key/value heads; H must be a multiple of K
    head_size: int  # D, elements of one head; H * D may differ from C
    ffn_width: int  # elements between the two halves of the feed-forward network
    context: int = 8192  # longest sequence the model was made for, tokens
    norm_eps: float = 1e-5  # added to the mean square inside RMSNorm
    rope_theta: float = 10_000.0  # base of the rotary wavelengths
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False  # the LM head is the transposed embedding
    qkv_bias: bool = False  # Qwen2
    qk_norm: bool = False  # RMSNorm on every query and key head, Qwen3
    windows: tuple[int | None, ...] = ()  # per layer: sliding window in tokens, None = unlimited
    kv_source: tuple[int, ...] = ()  # per layer: whose keys and values it reads; identity if empty

    def __post_init__(self) -> None:
        fill = object.__setattr__
        fill(self, "windows", tuple(self.windows) or (None,) * self.n_layers)
        fill(self, "kv_source", tuple(self.kv_source) or tuple(range(self.n_layers)))
        sizes = ("vocab_size", "width", "n_layers", "n_heads", "n_kv_heads", "head_size")
        for name in (*sizes, "ffn_width", "context"):
            _check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; it must be >= 1")
        _check(
            self.n_heads % self.n_kv_heads == 0,
            f"{self.n_heads} query heads cannot be grouped over {self.n_kv_heads} KV heads",
        )
        _check(self.head_size % 2 == 0, f"head_size {self.head_size} is odd; rotary needs pairs")
        for name in ("windows", "kv_source"):
            n = len(getattr(self, name))
            _check(n == self.n_layers, f"{name} has {n} entries for {self.n_layers} layers")
        for layer, window in enumerate(self.windows):
            _check(window is None or window >= 1, f"layer {layer} has window {window}; minimum 1")
        for layer, source in enumerate(self.kv_source):
            _check(
                0 <= source <= layer and self.kv_source[source] == source,
                f"layer {layer} reads the keys and values of layer {source}; a source must be "
                "an earlier layer that computes its own",
            )
            _check(
                self.windows[source] == self.windows[layer],
                f"layer {layer} (window {self.windows[layer]}) cannot read layer {source} "
                f"(window {self.windows[source]}): the windows differ",
            )

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers that compute and store their own keys and values."""
        return tuple(sorted(set(self.kv_source)))

    def kv_bytes_per_token(self, bytes_per_element: int = 2) -> int:
        """Cache bytes of one token: 2 x storing layers x K x D x bytes per element."""
        return 2 * len(self.kv_layers) * self.n_kv_heads * self.head_size * bytes_per_element

    def n_parameters(self) -> int:
        """Trained numbers; tied embeddings count once, a shared layer has no K and V projection."""
        C, D = self.width, self.head_size
        own = len(self.kv_layers) / self.n_layers
        heads = (self.n_heads + 2 * own * self.n_kv_heads) * D  # rows of the q, k and v projections
        attention = C * heads + self.n_heads * D * C
        extras = heads * self.qkv_bias + (1 + own) * D * self.qk_norm + 2 * C
        layers = self.n_layers * (attention + extras + 3 * C * self.ffn_width)
        return round(layers) + C + self.vocab_size * C * (1 if self.tied_embeddings else 2)

    def flops_per_token(self, context: int) -> int:
        """Floating-point operations to compute one token that sees `context` keys.

        Two per weight of every matrix (the embedding is a look-up, the head is a matrix), and
        4 * H * D per visible key and layer for scores and weighted sum; norms, rotary and softmax
        are left out, well under 1 % of the total.
        """
        C, D = self.width, self.head_size
        heads = self.n_layers * 2 * self.n_heads + 2 * len(self.kv_layers) * self.n_kv_heads
        weights = heads * D * C + self.n_layers * 3 * C * self.ffn_width + self.vocab_size * C
        keys = sum(min(context, window or context) for window in self.windows)
        return 2 * weights + 4 * keys * self.n_heads * D

    @classmethod
    def from_hf(cls, source: str | Path | dict) -> Config:
        """Read a Hugging Face config: a dict, a `config.json`, or the folder that holds one.

        Raises ValueError for an architecture or a feature this book does not compute.
        """
        return _from_hf(source if isinstance(source, dict) else _read_json(Path(source)))


def _check(claim: bool, message: str) -> None:
    if not claim:
        raise ValueError(message)


def _read_json(path: Path) -> dict:
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; a checkpoint folder needs config.json beside its safetensors"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch it again") from error


def _from_hf(hf: dict) -> Config:
    family = hf.get("model_type")
    _check(
        family in SUPPORTED,
        f"model_type {family!r} is not supported; supported are {', '.join(SUPPORTED)}",
    )
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    missing = [name for name in (*needed, "intermediate_size") if hf.get(name) is None]
    _check(not missing, f"the config lacks {', '.join(missing)}")
    hf = DEFAULTS[family] | hf
    _refuse_unknown_features(hf)
    n_layers, n_heads = hf["num_hidden_layers"], hf["num_attention_heads"]
    theta, scaling = _rope(hf)
    return Config(
        vocab_size=hf["vocab_size"],
        width=hf["hidden_size"],
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=hf.get("num_key_value_heads") or n_heads,
        head_size=hf.get("head_dim") or hf["hidden_size"] // n_heads,
        ffn_width=hf["intermediate_size"],
        context=hf["max_position_embeddings"],
        norm_eps=hf.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=bool(hf.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        windows=_windows(hf),
        kv_source=tuple(hf.get("kv_source") or ()),
    )


def _refuse_unknown_features(hf: dict) -> None:
    """Raise ValueError if `hf` switches on something that changes the arithmetic."""
    act = hf.get("hidden_act", "silu")
    _check(act == "silu", f"hidden_act {act!r} is not supported; only 'silu' is")
    for name in ("attention_bias", "mlp_bias", "quantization_config"):
        _check(not hf.get(name), f"{name}={hf.get(name)!r} is not supported")
    tp = hf.get("pretraining_tp", 1)
    _check(tp in (None, 1), f"pretraining_tp={tp} is not supported; only 1 is")


def _rope(hf: dict) -> tuple[float, RopeScaling | None]:
    """Base and scaling from `rope_parameters` (transformers 5) or `rope_theta`/`rope_scaling`."""
    rope = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    nested = [name for name, value in rope.items() if isinstance(value, dict)]
    _check(not nested, f"rotary parameters per layer type ({', '.join(nested)}) are not supported")
    partial = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    _check(partial == 1.0, f"partial_rotary_factor={partial} is not supported; only 1.0 is")
    theta = float(rope.get("rope_theta") or hf.get("rope_theta") or 10_000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    _check(
        kind == "llama3",
        f"rotary scaling {kind!r} is not supported; supported are 'default' and 'llama3'",
    )
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [name for name in names if rope.get(name) is None]
    _check(not missing, f"the llama3 rotary scaling lacks {', '.join(missing)}")
    return theta, RopeScaling(*(rope[name] for name in names))


def _windows(hf: dict) -> tuple[int | None, ...]:
    """Sliding window of every layer, by the rules of each family's reference code."""
    n_layers, window, family = hf["num_hidden_layers"], hf.get("sliding_window"), hf["model_type"]
    if family == "mistral":
        return (window,) * n_layers
    if family == "llama":
        return (None,) * n_layers
    if not hf.get("use_sliding_window"):
        window = None
    kinds = hf.get("layer_types") or [
        "full_attention" if layer < hf["max_window_layers"] else "sliding_attention"
        for layer in range(n_layers)
    ]
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    _check(not unknown, f"layer_types {sorted(unknown)} are not supported")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
