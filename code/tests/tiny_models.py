"""Small random models of every supported family, made by Hugging Face: the oracle of parity.

Every choice is there to make a wrong implementation visible. Weights are wide (`initializer_range`
0.2), or attention is uniform and masks, scales and rotations prove nothing. Norm weights and biases
are random, or a forgotten or exchanged one goes unnoticed. `rms_norm_eps` is as large as the mean
square it is added to. All sizes differ, and windows are shorter than the sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kvpipe.generate import left_pad

VOCAB, CONTEXT = 97, 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 0.01,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
}
# With head size 20 the ten wavelengths run from 6 to 25,000 tokens: one stays as it is, one lies
# between 32/4 and 32/1 and is interpolated, the others are stretched.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama-3-tied": (
        LlamaForCausalLM,
        LlamaConfig,
        {"head_dim": 20, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 3}),
    "qwen2-sliding-tied": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {**SLIDING, "tie_word_embeddings": True, "num_key_value_heads": 6},
    ),
    "qwen3": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 4, "num_key_value_heads": 1}),
}


def build(family: str) -> PreTrainedModel:
    """The Hugging Face model, with attention written out in matrix products (no fused kernel)."""
    model_class, config_class, changes = FAMILIES[family]
    torch.manual_seed(7)
    model = model_class(config_class(**{**SIZES, **changes}, attn_implementation="eager"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_()
    return model.eval()


def rows(padded: bool) -> tuple[Tensor, Tensor]:
    """Three rows of random tokens with positions; of different length, padded left, or equal."""
    generator = torch.Generator().manual_seed(11)
    lengths = (13, 9, 4) if padded else (13, 13, 13)
    ids = [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]
    return left_pad(ids, pad_token=5)


def hf_logits(model: PreTrainedModel, tokens: Tensor, positions: Tensor) -> Tensor:
    """Logits by Hugging Face, its own mask and position ids built from our positions."""
    is_token = (positions >= 0).long()
    ids = positions.clamp(min=0)
    return model(tokens, attention_mask=is_token, position_ids=ids, use_cache=False).logits


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Whole tensors, by the largest difference relative to the largest expected value."""
    assert actual.shape == expected.shape, f"{actual.shape} against {expected.shape}"
    scale = expected.abs().max().item()
    difference = (actual - expected).abs().max().item()
    assert difference <= tolerance * scale, f"differs by {difference:.3g} at scale {scale:.3g}"
