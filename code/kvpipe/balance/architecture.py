"""The sizes of a model that its FLOPs depend on, read from a Hugging Face config.json. Chapter 4.

Rotary scaling, quantisation, biases and activation functions change no matrix product, so a
config that uses them is planned for even where `kvpipe.config` refuses to compute it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvpipe.balance.presets import PRESETS
from kvpipe.config import Config

# Mixture-of-experts families, and the dense family whose attention they have.
MIXTURES = {"mixtral": "mistral", "qwen2_moe": "qwen2", "qwen3_moe": "qwen3", "olmoe": "llama"}
DENSE = ("llama", "mistral", "qwen2", "qwen3")
SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings",
    "tie_word_embeddings", "sliding_window", "use_sliding_window", "max_window_layers",
    "layer_types",
)  # fmt: skip
COUNTS = (*SIZES[:8], "num_experts", "num_local_experts", "num_experts_per_tok",
          "moe_intermediate_size", "shared_expert_intermediate_size")  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """One decoder layer: widths in elements, the window in tokens (None: unlimited)."""

    width: int  # C
    n_heads: int  # H
    n_kv_heads: int  # K
    head_size: int  # D
    window: int | None
    ffn_width: int  # of the dense network, or of one expert
    n_active: int = 1  # networks of this width that a token passes
    n_experts: int = 0  # columns of the router; 0 without one
    shared_ffn_width: int = 0  # of the expert that every token passes besides


@dataclass(frozen=True)
class Architecture:
    """All that FLOPs depend on."""

    name: str
    vocab_size: int
    width: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool = False

    @property
    def fingerprint(self) -> str:
        """A name for exactly these sizes, whatever the model is called: 16 hex digits."""
        sizes = {name: value for name, value in asdict(self).items() if name != "name"}
        return hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]


def read_architecture(source: str | Path | Mapping) -> Architecture:
    """Sizes from a preset's name, a config.json, the folder that holds one, or its content.

    Raises ValueError for an unknown name or architecture, and for missing or impossible sizes.
    """
    if isinstance(source, Mapping):
        return _from_hf(dict(source), str(source.get("_name_or_path") or source.get("model_type")))
    if str(source).lower() in PRESETS:
        return _from_hf(PRESETS[str(source).lower()], str(source).lower())
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    return _from_hf(read_object(path), path.resolve().parent.name or path.stem)


def read_object(path: Path) -> dict:
    """The JSON object in a file; ValueError where there is none."""
    if not path.is_file():
        raise ValueError(f"{path} is neither a file nor a preset; presets are {', '.join(PRESETS)}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a JSON object")
    return content


def _from_hf(hf: dict, name: str) -> Architecture:
    family = hf.get("model_type")
    if family not in DENSE and family not in MIXTURES:
        raise ValueError(
            f"model_type {family!r} is not known; known are {', '.join((*DENSE, *MIXTURES))}. "
            "Any other model can be given as a list of layer costs"
        )
    _check_counts(hf)
    sizes = {key: hf[key] for key in SIZES if hf.get(key) is not None}
    config = Config.from_hf(sizes | {"model_type": MIXTURES.get(family, family)})
    return architecture_of(config, name, _mixture(hf, family) if family in MIXTURES else None)


def architecture_of(config: Config, name: str = "", mixture: dict | None = None) -> Architecture:
    """The same sizes from the configuration of a model of this book."""
    layers = tuple(_layer(config, index, mixture) for index in range(config.n_layers))
    return Architecture(name, config.vocab_size, config.width, layers, config.tied_embeddings)


def _layer(config: Config, index: int, mixture: dict | None) -> Layer:
    C, H, K, D = config.width, config.n_heads, config.n_kv_heads, config.head_size
    window = config.windows[index]
    if mixture is None or index in mixture["dense"] or (index + 1) % mixture["step"]:
        return Layer(C, H, K, D, window, config.ffn_width)
    experts = mixture["width"], mixture["active"], mixture["experts"], mixture["shared_width"]
    return Layer(C, H, K, D, window, *experts)


def _mixture(hf: dict, family: str) -> dict:
    """Where the experts are, how wide, and how many a token passes."""
    width = "moe_intermediate_size" if family.startswith("qwen") else "intermediate_size"
    experts = "num_local_experts" if hf.get("num_local_experts") else "num_experts"
    missing = [key for key in (width, experts, "num_experts_per_tok") if hf.get(key) is None]
    if missing:
        raise ValueError(f"the config of a {family} lacks {', '.join(missing)}")
    active, n_experts = hf["num_experts_per_tok"], hf[experts]
    if active > n_experts:
        raise ValueError(f"num_experts_per_tok is {active}, but there are {n_experts} experts")
    shared = hf.get("shared_expert_intermediate_size") if family == "qwen2_moe" else 0
    return {
        "width": hf[width],
        "active": active,
        "experts": n_experts,
        "shared_width": shared or 0,
        "dense": frozenset(hf.get("mlp_only_layers") or ()),
        "step": hf.get("decoder_sparse_step") or 1,
    }


def _check_counts(hf: dict) -> None:
    for key in COUNTS:
        value = hf.get(key)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value is not None and not is_count:
            raise ValueError(f"{key} is {value!r}; it must be a whole number of at least 1")
