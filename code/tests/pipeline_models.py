"""Small random checkpoints for the pipeline's tests, and what a single process does with them.

All sizes differ, weights are wide and norm weights random, so that an exchanged or forgotten part
shows. Float64 throughout: what differs by more than rounding is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from kvpipe.checkpoints import hf_name, load_stage
from kvpipe.config import Config
from kvpipe.transformer import Transformer

N_LAYERS, VOCAB, WIDTH = 7, 53, 24
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 36,
    "max_position_embeddings": 64,
    "rms_norm_eps": 0.01,
}
QWEN3 = {
    "model_type": "qwen3",
    "use_sliding_window": True,
    "sliding_window": 3,
    "max_window_layers": 4,
}
MODELS = {
    "tied": {**LLAMA, "tie_word_embeddings": True},
    "untied": LLAMA,
    "qwen2": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**LLAMA, **QWEN3},
    "shared": {**LLAMA, "kv_source": [0, 0, 2, 3, 3, 5, 5], "tie_word_embeddings": True},
}


def write_checkpoint(folder: Path, config: dict, seed: int = 5) -> Path:
    """A checkpoint folder with random weights for a Hugging Face config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(seed)
    model = Transformer(Config.from_hf(config))
    tensors = {}
    for name, parameter in model.state_dict().items():
        is_norm = "norm" in name
        values = torch.rand_like(parameter) + 0.5 if is_norm else torch.randn_like(parameter) * 0.3
        tensors[hf_name(name, model.config.tied_embeddings)] = values
    save_file(tensors, folder / "model.safetensors")
    return folder


def batch(n_rows: int, n_tokens: int, seed: int = 3) -> Tensor:
    """Random token ids."""
    return torch.randint(VOCAB, (n_rows, n_tokens), generator=torch.Generator().manual_seed(seed))


def serial_loss(
    model: Transformer, tokens: Tensor, targets: Tensor, positions: Tensor | None = None
) -> Tensor:
    """The loss of one process on the whole batch: torch's own mean over targets that count."""
    logits = model(tokens, positions)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


@contextmanager
def one_thread() -> Iterator[None]:
    """On a busy machine, threads that wait for each other cost more than these models do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
@one_thread()
def serial_step(
    folder: Path, tokens: Tensor, targets: Tensor, positions: Tensor | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one process."""
    model = load_stage(folder, dtype=torch.float64)
    loss = serial_loss(model, tokens, targets, positions)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def assert_same(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """By the largest difference, relative to the largest value of what is expected."""
    assert actual.shape == expected.shape, f"{what}: {actual.shape} against {expected.shape}"
    scale = expected.abs().max().item()
    assert scale > 0, f"{what}: expected is 0 everywhere, which proves nothing"
    difference = (actual - expected).abs().max().item()
    assert difference <= tolerance * scale, f"{what}: off by {difference:.3g} at scale {scale:.3g}"
