"""A config means what the reference code of its family says, and nothing is guessed."""

import json

import pytest
import torch
from tiny_models import FAMILIES, LLAMA3_ROPE, SIZES
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from kvpipe.config import SUPPORTED, Config, RopeScaling
from kvpipe.transformer import Transformer

CLASSES = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
}
MINIMAL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
}
LLAMA = {**MINIMAL, "model_type": "llama"}
QWEN = {**MINIMAL, "model_type": "qwen2"}
SHAPE = {"vocab_size": 97, "width": 24, "n_layers": 3, "n_heads": 6, "n_kv_heads": 2}
PLAIN = {**SHAPE, "head_size": 4, "ffn_width": 40}


@pytest.mark.parametrize("family", SUPPORTED)
def test_what_a_config_leaves_out_is_what_hugging_face_assumes(family):
    ours = Config.from_hf({**MINIMAL, "model_type": family})
    theirs = CLASSES[family](**MINIMAL)
    assert ours.n_kv_heads == theirs.num_key_value_heads
    assert ours.head_size == getattr(theirs, "head_dim", 64 // 32)
    assert ours.context == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert set(ours.windows) == {theirs.sliding_window if family == "mistral" else None}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_hugging_face_saves_is_read_whole(family, tmp_path):
    _, config_class, changes = FAMILIES[family]
    theirs = config_class(**{**SIZES, **changes})
    theirs.save_pretrained(tmp_path)
    ours = Config.from_hf(tmp_path)
    assert ours == Config.from_hf(tmp_path / "config.json") == Config.from_hf(theirs.to_dict())
    assert (ours.vocab_size, ours.width, ours.n_layers) == (97, 48, 3)
    assert (ours.n_heads, ours.ffn_width, ours.context, ours.norm_eps) == (6, 80, 64, 0.01)
    assert ours.n_kv_heads == theirs.num_key_value_heads
    assert ours.head_size == (changes.get("head_dim") or 8)
    assert ours.tied_embeddings == ("tied" in family)
    assert (ours.qkv_bias, ours.qk_norm) == (family.startswith("qwen2"), family == "qwen3")
    assert ours.kv_source == (0, 1, 2)


def test_windows_follow_the_family():
    def windows(**changes):
        return Config.from_hf({**MINIMAL, "num_hidden_layers": 4, **changes}).windows

    sliding = {"use_sliding_window": True, "max_window_layers": 3}
    assert windows(model_type="mistral", sliding_window=7) == (7,) * 4
    assert windows(model_type="mistral", sliding_window=None) == (None,) * 4
    assert windows(model_type="llama", sliding_window=7) == (None,) * 4
    assert windows(model_type="qwen2", sliding_window=7) == (None,) * 4
    assert windows(model_type="qwen2", sliding_window=7, **sliding) == (None, None, None, 7)
    assert windows(model_type="qwen3", **sliding) == (None, None, None, 4096)
    kinds = ["sliding_attention", "full_attention"] * 2
    chosen = {"sliding_window": 7, "layer_types": kinds}
    assert windows(model_type="qwen3", **chosen, **sliding) == (7, None, 7, None)
    assert windows(model_type="qwen3", **chosen) == (None,) * 4


def test_both_spellings_of_the_rotary_settings_are_read():
    old = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    spellings = (
        {"rope_parameters": LLAMA3_ROPE},
        {"rope_theta": 10_000.0, "rope_scaling": old},
        {"rope_theta": 10_000, "rope_scaling": {**old, "type": old["rope_type"]}},
    )
    for spelling in spellings:
        c = Config.from_hf({**LLAMA, **spelling})
        assert (c.rope_theta, c.rope_scaling) == (10_000.0, RopeScaling(8.0, 1.0, 4.0, 32))
    assert Config.from_hf({**LLAMA, "rope_theta": 5e5, "rope_scaling": None}).rope_theta == 5e5


REFUSED = {
    "architecture": ({"model_type": "gemma"}, r"'gemma'.*llama, qwen2, qwen3, mistral"),
    "no architecture": ({"model_type": None}, r"None is not supported.*llama"),
    "missing sizes": (
        {"hidden_size": None, "intermediate_size": None},
        r"lacks hidden_size, intermediate_size",
    ),
    "activation": ({"hidden_act": "gelu"}, r"hidden_act 'gelu'.*silu"),
    "output bias": ({"attention_bias": True}, r"attention_bias=True"),
    "ffn bias": ({"mlp_bias": True}, r"mlp_bias=True"),
    "quantised": ({"quantization_config": {"bits": 4}}, r"quantization_config=\{'bits': 4\}"),
    "tensor parallel": ({"pretraining_tp": 2}, r"pretraining_tp=2"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0.5"),
    "partial rotary, new spelling": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        r"partial_rotary_factor=0.5",
    ),
    "yarn": ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, r"'yarn'.*'default' and 'llama3'"),
    "llama3 without factor": (
        {"rope_parameters": {**LLAMA3_ROPE, "factor": None}},
        r"llama3 rotary scaling lacks factor",
    ),
    "rotary per layer type": (
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        r"per layer type \(full_attention\)",
    ),
    "grouping": ({"num_key_value_heads": 5}, r"32 query heads cannot be grouped over 5"),
    "odd head": ({"head_dim": 5}, r"head_size 5 is odd"),
    "no layers": ({"num_hidden_layers": 0}, r"n_layers is 0.*>= 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused_by_name(case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        Config.from_hf({**LLAMA, **changes})


def test_unknown_layer_types_are_refused():
    with pytest.raises(ValueError, match=r"'chunked_attention'.*not supported"):
        Config.from_hf({**QWEN, "layer_types": ["chunked_attention"] * 30})


REFUSED_SHAPES = {
    "no width": ({"width": 0}, r"width is 0"),
    "no ffn": ({"ffn_width": -1}, r"ffn_width is -1"),
    "no context": ({"context": 0}, r"context is 0"),
    "windows": ({"windows": (4,)}, r"windows has 1 entries for 3 layers"),
    "window of zero": ({"windows": (4, 0, 4)}, r"layer 1 has window 0"),
    "sources": ({"kv_source": (0, 0)}, r"kv_source has 2 entries for 3 layers"),
    "later source": ({"kv_source": (1, 1, 2)}, r"layer 0 reads.* of layer 1"),
    "negative source": ({"kv_source": (0, -1, 2)}, r"layer 1 reads.* of layer -1"),
    "source that borrows": ({"kv_source": (0, 0, 1)}, r"layer 2 reads.* of layer 1"),
    "source with another window": (
        {"kv_source": (0, 0, 2), "windows": (4, None, 4)},
        r"layer 1 \(window None\) cannot read layer 0 \(window 4\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED_SHAPES)
def test_impossible_shapes_are_refused_with_their_numbers(case):
    changes, message = REFUSED_SHAPES[case]
    with pytest.raises(ValueError, match=message):
        Config(**{**PLAIN, **changes})


def test_a_folder_without_config_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist.*safetensors"):
        Config.from_hf(tmp_path)


def test_a_broken_config_file_is_a_value_error_that_names_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(ValueError, match=r"config\.json"):
        Config.from_hf(tmp_path)


def test_kv_sharing_can_be_written_into_the_config_file(tmp_path):
    shared = {**LLAMA, "num_hidden_layers": 4, "kv_source": [0, 0, 2, 2]}
    (tmp_path / "config.json").write_text(json.dumps(shared))
    c = Config.from_hf(tmp_path)
    assert (c.kv_source, c.kv_layers) == ((0, 0, 2, 2), (0, 2))


def test_llama_3_8b_keeps_128_kib_per_token():
    c = Config.from_hf(
        {
            "model_type": "llama",
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        }
    )
    assert c.kv_bytes_per_token() == 128 * 1024  # 2 * 32 layers * 8 heads * 128 * 2 bytes
    assert c.n_parameters() == 8_030_261_248  # the sum of the published tensors


SHARED = {"kv_source": (0, 0, 0)}


@pytest.mark.parametrize("changes", [{}, SHARED], ids=["own", "shared"])
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_counted_as_they_are(family, changes):
    _, config_class, options = FAMILIES[family]
    if changes and "sliding" in family:
        options = {**options, "max_window_layers": 0}
    hf = config_class(**{**SIZES, **options}).to_dict()
    c = Config.from_hf({**hf, "layer_types": None, **changes})
    assert c.n_parameters() == sum(p.numel() for p in Transformer(c).parameters())


@pytest.mark.parametrize("changes", [{}, SHARED, {"windows": (3, None, 5)}], ids=str)
def test_operations_are_counted_as_torch_counts_them(changes):
    c = Config(**{**PLAIN, **changes})
    context, batch = 9, 2

    def plain_attention(q, k, v, q_positions, k_positions, window):
        n = min(context, window or context)
        k, v = (x[:, :, -n:].repeat_interleave(3, dim=1) for x in (k, v))
        return (q @ k.mT).softmax(-1) @ v

    class Full:
        """Stands for a cache that already holds all keys but the newest."""

        def append(self, layer, k, v, positions):
            return (k.expand(-1, -1, context, -1), v.expand(-1, -1, context, -1), positions)

        def observe(self, *_):
            pass

    model = Transformer(c)  # its weights need gradients, so every product is torch's own
    with FlopCounterMode(display=False) as counter:
        tokens, positions = torch.ones(2, batch, 1, dtype=torch.long)
        model(tokens, positions, Full(), plain_attention)
    assert counter.get_total_flops() == batch * c.flops_per_token(context)
