"""Sizes of published models, by name, as their config.json states them. Chapter 4."""

from __future__ import annotations


def _llama(
    vocab_size: int, width: int, n_layers: int, n_heads: int, n_kv_heads: int, ffn_width: int,
    context: int, *, tied: bool = False, model_type: str = "llama",
) -> dict:  # fmt: skip
    return {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "intermediate_size": ffn_width,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
    }


PRESETS: dict[str, dict] = {
    "llama2-7b": _llama(32_000, 4096, 32, 32, 32, 11_008, 4096),
    "llama2-13b": _llama(32_000, 5120, 40, 40, 40, 13_824, 4096),
    "llama3-8b": _llama(128_256, 4096, 32, 32, 8, 14_336, 8192),
    "qwen2.5-14b": _llama(152_064, 5120, 48, 40, 8, 13_824, 131_072, model_type="qwen2"),
    # The default model of the book; its head is the transposed embedding.
    "smollm2-135m": _llama(49_152, 576, 30, 9, 3, 1536, 8192, tied=True),
}
