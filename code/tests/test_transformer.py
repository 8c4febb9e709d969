"""Our decoder computes what Hugging Face's does, in every family and every way of feeding it."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from tiny_models import FAMILIES, VOCAB, assert_near, hf_logits, rows
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kvpipe.attention import attention, attention_weights
from kvpipe.cache import KVCache
from kvpipe.checkpoints import hf_name, load_stage
from kvpipe.config import Config, RopeScaling
from kvpipe.generate import left_pad
from kvpipe.transformer import RMSNorm, Stage, Transformer, rotary, rotary_frequencies, rotate

# Both sides round to float32 (6e-8 relative) after each of about 50 operations in a row, in
# different orders; 1e-5 of the largest logit is some ten times what that was seen to give.
FLOAT32 = 1e-5
SIZES = {"vocab_size": 53, "width": 24, "n_layers": 4, "n_heads": 6, "n_kv_heads": 2}
SMALL = {**SIZES, "head_size": 6, "ffn_width": 40, "context": 64, "norm_eps": 0.01}
SHARED = (0, 0, 2, 2)
PATTERNS = [SHARED, (0, 1, 0, 1), (0, 0, 0, 0)]  # the second: not the latest keys, but the source's


def small(seed: int = 1, **changes) -> Transformer:
    """A random model of ours with weights wide enough to matter."""
    torch.manual_seed(seed)
    model = Transformer(Config(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def fed_in_chunks(model, tokens, positions, lengths, cache) -> torch.Tensor:
    """The logits of all chunks in a row; `lengths` add up to the sequence."""
    chunks = zip(tokens.split(lengths, dim=1), positions.split(lengths, dim=1), strict=True)
    return torch.cat([model(t, p, cache) for t, p in chunks], dim=1)


@pytest.mark.parametrize("padded", [False, True], ids=["equal", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_equal_hugging_face(tiny, family, padded):
    ours, theirs = tiny(family)
    tokens, positions = rows(padded)
    is_token = positions >= 0
    expected = hf_logits(theirs, tokens, positions)[is_token]
    assert_near(ours(tokens, positions)[is_token], expected, FLOAT32)


@pytest.mark.parametrize("lengths", [[5, 1, 4, 3], [1] * 13, [12, 1]], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["equal", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_chunks_with_a_cache_equal_hugging_face_without(tiny, family, padded, lengths):
    ours, theirs = tiny(family)
    tokens, positions = rows(padded)
    is_token = positions >= 0
    expected = hf_logits(theirs, tokens, positions)[is_token]
    logits = fed_in_chunks(ours, tokens, positions, lengths, KVCache(capacity=4))
    assert_near(logits[is_token], expected, FLOAT32)


@pytest.mark.parametrize("padded", [False, True], ids=["equal", "padded"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_all_parameters_equal_hugging_face(tiny, family, padded):
    ours, theirs = tiny(family)
    tokens, positions = rows(padded)
    is_target = (positions >= 0)[:, :-1]

    def gradients(model, logits):
        loss = F.cross_entropy(logits[:, :-1][is_target], tokens[:, 1:][is_target])
        names, parameters = zip(*model.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))

    mine = gradients(ours, ours(tokens, positions))
    true = gradients(theirs, hf_logits(theirs, tokens, positions))
    assert {hf_name(name) for name in mine} == set(true)
    largest = max(gradient.abs().max() for gradient in true.values())
    for name, gradient in mine.items():
        # Relative to this tensor, or to a thousandth of the largest where it is tiny: what is
        # left of a gradient after cancellation keeps the rounding of its terms.
        scale = max(true[hf_name(name)].abs().max(), largest / 1000)
        assert (gradient - true[hf_name(name)]).abs().max() <= 5 * FLOAT32 * scale, name


@torch.no_grad()
def test_positions_continue_where_the_cache_ends():
    model, cache = small(), KVCache()
    tokens = torch.randint(53, (2, 9), generator=torch.Generator().manual_seed(2))
    whole = model(tokens)
    parts = torch.cat([model(tokens[:, :5], cache=cache), model(tokens[:, 5:], cache=cache)], dim=1)
    assert_near(parts, whole, FLOAT32)


@torch.no_grad()
def test_padding_is_invisible_whatever_it_holds(tiny):
    ours, _ = tiny("llama")
    tokens, positions = rows(padded=True)
    is_token = positions >= 0
    other = torch.where(is_token, tokens, (tokens + 31) % VOCAB)
    expected = ours(tokens, positions)[is_token]
    torch.testing.assert_close(ours(other, positions)[is_token], expected, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_only_differences_of_positions_matter(tiny, family):
    ours, _ = tiny(family)
    tokens, positions = rows(padded=True)
    is_token = positions >= 0
    moved = torch.where(is_token, positions + 41, -1)
    assert_near(ours(tokens, moved)[is_token], ours(tokens, positions)[is_token], FLOAT32)


@torch.no_grad()
def test_a_token_sees_no_later_one(tiny):
    ours, _ = tiny("llama")
    tokens, positions = rows(padded=False)
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % VOCAB
    before, after = ours(tokens, positions), ours(changed, positions)
    torch.testing.assert_close(after[:, :8], before[:, :8], rtol=0, atol=0)
    assert ((after - before)[:, 8:].abs().amax(dim=-1) > 1e-3).all()


@torch.no_grad()
def test_the_last_logits_alone_equal_the_last_of_all(tiny):
    ours, _ = tiny("qwen3")
    tokens, positions = rows(padded=True)
    for n in (1, 4):
        last = ours(tokens, positions, n_logits=n)
        assert_near(last, ours(tokens, positions)[:, -n:], FLOAT32)


CUTS = [(2,), (1, 3), (1, 2, 3)]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@torch.no_grad()
def test_stages_in_a_row_with_their_own_caches_equal_the_whole(tied, cuts):
    whole = small(tied_embeddings=tied, windows=(None, 3, None, 5))
    stages = split(whole, cuts)
    tokens, positions = (x[:, :9] for x in left_pad([range(9), range(20, 25)]))
    caches = [KVCache(capacity=2) for _ in stages]
    outputs = []
    for t, p in zip(tokens.split([4, 1, 4], 1), positions.split([4, 1, 4], 1), strict=True):
        for stage, cache in zip(stages, caches, strict=True):
            t = stage(t, p, cache)
        outputs.append(t)
    is_token = positions >= 0
    expected = whole(tokens, positions)
    assert_near(torch.cat(outputs, dim=1)[is_token], expected[is_token], FLOAT32)


def split(whole: Transformer, cuts: tuple[int, ...]) -> list[Stage]:
    """Stages with the weights of `whole`; a tied last stage gets its copy of the embedding."""
    edges = (0, *cuts, whole.config.n_layers)
    stages = [Stage(whole.config, range(a, b)) for a, b in itertools.pairwise(edges)]
    weights = dict(whole.state_dict())
    weights.setdefault("head.weight", weights["embedding.weight"])
    for stage in stages:
        stage.load_state_dict({name: weights[name] for name in stage.state_dict()})
    return stages


@pytest.mark.parametrize("family", ["llama-3-tied", "qwen2", "qwen3"])
@torch.no_grad()
def test_stages_loaded_from_files_equal_hugging_face(tiny, family, tmp_path):
    _, theirs = tiny(family)
    theirs.save_pretrained(tmp_path)
    tokens, positions = rows(padded=True)
    x = tokens
    for layers in (range(0, 1), range(1, 3)):
        x = load_stage(tmp_path, layers)(x, positions)
    is_token = positions >= 0
    assert_near(x[is_token], hf_logits(theirs, tokens, positions)[is_token], FLOAT32)


def test_a_stage_owns_what_it_computes_and_nothing_else():
    c = Config(**SMALL, kv_source=SHARED, tied_embeddings=True)
    first, last = Stage(c, range(0, 2)), Stage(c, range(2, 4))
    assert [name for name, _ in first.named_children()] == ["embedding", "blocks"]
    assert [name for name, _ in last.named_children()] == ["blocks", "norm", "head"]
    assert list(first.blocks) == ["0", "1"] and list(last.blocks) == ["2", "3"]
    assert Transformer(c).head is None
    assert "blocks.1.attention.query.weight" in first.state_dict()
    assert "blocks.1.attention.key.weight" not in first.state_dict()


@pytest.mark.parametrize("kv_source", PATTERNS, ids=str)
@torch.no_grad()
def test_a_layer_reads_the_keys_and_values_of_its_source(kv_source):
    model = small(kv_source=kv_source)
    received = []

    def watched(q, k, v, *rest):
        received.append((k, v))
        return attention(q, k, v, *rest)

    tokens = torch.arange(18).view(2, 9)
    plain = model(tokens, attend=watched)
    for layer, source in enumerate(kv_source):
        assert received[layer][0] is received[source][0]
        assert received[layer][1] is received[source][1]
    assert len({k.data_ptr() for k, _ in received}) == len(set(kv_source))
    whole = model(tokens)
    torch.testing.assert_close(plain, whole, rtol=0, atol=0)


@pytest.mark.parametrize("lengths", [[9], [4, 1, 4], [1] * 9], ids=str)
@pytest.mark.parametrize("kv_source", PATTERNS, ids=str)
@torch.no_grad()
def test_sharing_gives_the_same_with_and_without_a_cache(kv_source, lengths):
    model, cache = small(kv_source=kv_source), KVCache(capacity=2)
    tokens, positions = left_pad([range(9), range(20, 25)])
    is_token = positions >= 0
    logits = fed_in_chunks(model, tokens, positions, lengths, cache)
    assert_near(logits[is_token], model(tokens, positions)[is_token], FLOAT32)


@torch.no_grad()
def test_sharing_changes_the_result():
    model, shared = small(), small(kv_source=SHARED)
    shared.load_state_dict(
        {k: v for k, v in model.state_dict().items() if k in shared.state_dict()}
    )
    tokens = torch.arange(18).view(2, 9)
    assert (model(tokens) - shared(tokens)).abs().max() > 0.01


@torch.no_grad()
def test_attention_is_an_argument_and_gets_positions_and_window():
    model = small(windows=(None, 3, None, 5))
    tokens, positions = left_pad([range(9), range(20, 25)])
    windows = []

    def written_out(q, k, v, q_positions, k_positions, window):
        windows.append(window)
        assert torch.equal(q_positions, positions) and torch.equal(k_positions, positions)
        weights = attention_weights(q, k, q_positions, k_positions, window)
        return weights @ v.repeat_interleave(3, dim=1)

    is_token = positions >= 0
    logits = model(tokens, positions, attend=written_out)[is_token]
    assert windows == [None, 3, None, 5]
    assert_near(logits, model(tokens, positions)[is_token], FLOAT32)


@torch.no_grad()
def test_the_cache_observes_every_layers_rotated_queries():
    class Watching(KVCache):
        def observe(self, layer, q, q_positions):
            observed.append((layer, q, q_positions))

    model, observed, attended = small(kv_source=SHARED), [], []

    def watched(q, *rest):
        attended.append(q)
        return attention(q, *rest)

    tokens, positions = left_pad([range(9), range(20, 25)])
    model(tokens, positions, Watching(), watched)
    assert [layer for layer, _, _ in observed] == [0, 1, 2, 3]
    for (_, q, where), expected in zip(observed, attended, strict=True):
        assert q is expected and where is positions


def test_rotation_is_multiplication_by_a_unit_complex_number():
    c = Config(**SMALL)
    positions = torch.tensor([[0, 1, 5, 60], [3, -1, 0, 2]])
    x = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(3))
    wavelengths = [10_000 ** (2 * i / 6) for i in range(3)]
    expected = torch.empty_like(x)
    for b, h, t, i in torch.cartesian_prod(*(torch.arange(n) for n in (2, 5, 4, 3))).tolist():
        angle = int(positions[b, t]) / wavelengths[i]
        pair = complex(x[b, h, t, i], x[b, h, t, i + 3]) * complex(math.cos(angle), math.sin(angle))
        expected[b, h, t, i], expected[b, h, t, i + 3] = pair.real, pair.imag
    # float32 angles up to 60 radians are off by 4e-6.
    torch.testing.assert_close(rotate(x, *rotary(positions, c)), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", [20, 64, 128])
def test_frequencies_equal_hugging_face(tiny, size):
    _, theirs = tiny("llama-3-tied")
    hf = theirs.config.__class__(**{**theirs.config.to_dict(), "head_dim": size})
    scaling = RopeScaling(8.0, 1.0, 4.0, 32)
    c = Config(**{**SMALL, "head_size": size}, rope_scaling=scaling)
    expected, factor = ROPE_INIT_FUNCTIONS["llama3"](hf, torch.device("cpu"))
    assert factor == 1
    frequencies = rotary_frequencies(c)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    plain = rotary_frequencies(Config(**{**SMALL, "head_size": size}))
    ratio = plain / frequencies
    assert ratio[0] == 1 and ratio[-1] == 8  # fast pairs stay, slow ones are stretched fully
    assert ((ratio > 1.001) & (ratio < 7.999)).any()  # and some lie between


def test_the_norm_is_its_formula():
    norm = RMSNorm(5, eps=0.3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5]))
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(4))
    for row, out in zip(x.flatten(0, 1).tolist(), norm(x).flatten(0, 1).tolist(), strict=True):
        root = math.sqrt(sum(e * e for e in row) / 5 + 0.3)
        expected = [e * g / root for e, g in zip(row, norm.weight.tolist(), strict=True)]
        assert out == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_half_precision_stays_close(tiny):
    ours, theirs = tiny("llama")
    tokens, positions = rows(padded=True)
    is_token = positions >= 0
    expected = hf_logits(theirs, tokens, positions)[is_token]
    half = Transformer(ours.config).to(torch.bfloat16)
    half.load_state_dict(ours.state_dict())
    logits = half(tokens, positions)[is_token]
    assert logits.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits: 0.4 % per operation, some fifteen roundings along the way to a logit.
    assert_near(logits.float(), expected, 0.05)


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
REFUSED = {
    "empty": ({"x": IDS[:, :0]}, r"shape \(2, 0\); expected \(B, T\) with at least one token"),
    "one row without batch": ({"x": IDS[:1].unsqueeze(0)}, r"shape \(1, 1, 3\)"),
    "id too large": ({"x": IDS * 10}, r"token id 60 is outside the vocabulary 0\.\.52"),
    "negative id": ({"x": IDS - 3}, r"token id -2 is outside the vocabulary 0\.\.52"),
    "positions of another shape": (
        {"x": IDS, "positions": IDS[:, :2]},
        r"positions \(2, 2\) do not match input \(2, 3\)",
    ),
    "beyond the context": (
        {"x": IDS, "positions": IDS + 60},
        r"position 66 is outside the model's context of 64",
    ),
    "too long": (
        {"x": torch.ones(1, 65, dtype=torch.long)},
        r"position 64 is outside the model's context of 64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_value_and_limit(case):
    arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        small()(**arguments)


@pytest.mark.parametrize("layers", [range(2, 2), range(-1, 2), range(2, 5), range(0, 4, 2)])
def test_a_stage_needs_a_run_of_layers(layers):
    with pytest.raises(ValueError, match=r"is not a run of layers within 0\.\.3"):
        Stage(Config(**SMALL), layers)


def test_layers_that_share_must_be_on_one_stage():
    message = r"layer 3 reads keys and values of layer 2, which is outside range\(3, 4\)"
    with pytest.raises(ValueError, match=message):
        Stage(Config(**SMALL, kv_source=SHARED), range(3, 4))


@pytest.mark.model
@torch.inference_mode()
def test_logits_of_the_real_model_equal_hugging_face(real, real_hf):
    model, tokenizer = real
    texts = [
        "The keys and values of a token never change once they are computed, which is why a "
        "decoder may keep them; 8192 tokens of this model cost 46080 bytes each in float32.",
        "def merge(a, b):\n    return sorted(a + b)\n",
        "Paris",
    ]
    tokens, positions = left_pad([tokenizer(text)["input_ids"] for text in texts])
    is_token = positions >= 0
    expected = hf_logits(real_hf, tokens, positions)[is_token]
    plain = model(tokens, positions)[is_token]
    T = tokens.shape[1]
    cached = fed_in_chunks(model, tokens, positions, [T - 12, 1, 11], KVCache())[is_token]
    assert expected.abs().max() > 10  # so that 1e-3 is a small difference
    assert (plain - expected).abs().max() <= 1e-3
    assert (cached - expected).abs().max() <= 1e-3
