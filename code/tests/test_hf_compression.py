"""Hugging Face models under a compressed cache: exact against hidden keys, nothing left over."""

import functools
import itertools
import json
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, build
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)

from kvpipe.attention import visible
from kvpipe.generate import generate, left_pad
from kvpipe.hf.compression import _as_transformers_wants, compress, pyramid_cache
from kvpipe.pyramid import (
    H2O,
    Full,
    PyramidCache,
    PyramidKV,
    Random,
    Scheduled,
    SnapKV,
    StreamingLLM,
)

GOLDEN = json.loads((Path(__file__).parent / "golden/kvpress_selection.json").read_text())
METHOD = PyramidKV(12, window=4, kernel=3)
TOLERANCE = 1e-4  # absolute; float32, logits with a standard deviation of about 1


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@functools.cache
def model_of(family: str, attention: str):
    model = build(family)
    model.set_attn_implementation(attention)
    return model


def prompts(*lengths: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of rows of these lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(1, 97, (n,), generator=generator).tolist() for n in lengths]
    tokens, positions = left_pad(ids)
    return tokens, (positions >= 0).long()


def hooks_of(model) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def spy_on(memory: PyramidCache, seen: dict[int, torch.Tensor]):
    """Note the key positions that every layer attends to, (B, K, S)."""
    append = memory.append

    def noted(layer, k, v, positions):
        out = append(layer, k, v, positions)
        at = out[2] if out[2].ndim == 3 else out[2][:, None]
        seen[layer] = at.expand(-1, k.shape[1], -1)
        return out

    memory.append = noted


def hide_all_but(model, seen: dict[int, torch.Tensor], full_positions, q_positions, windows):
    """Hooks that give every layer of a plain model the mask of what the other one kept."""

    def before(attention, args, kwargs):
        kept = seen[attention.layer_idx]
        everything = full_positions[:, None].expand(-1, kept.shape[1], -1)
        is_kept = (everything[..., None] == kept[..., None, :]).any(-1)
        hidden = everything.masked_fill(~is_kept, -1)
        mask = visible(q_positions, hidden, windows[attention.layer_idx])
        mask = mask.repeat_interleave(attention.num_key_value_groups, dim=1)
        mask = mask | ~mask.any(-1, keepdim=True)
        kwargs["attention_mask"] = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        return args, kwargs

    layers = model.base_model.layers
    return [x.self_attn.register_forward_pre_hook(before, with_kwargs=True) for x in layers]


def forwards(tokens, mask, parts):
    """Consecutive forwards over the columns of a padded batch: ids, mask and positions of each."""
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)
    for start, end in itertools.pairwise(itertools.accumulate(parts, initial=0)):
        yield tokens[:, start:end], mask[:, :end], positions[:, start:end], positions[:, :end]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("lengths", [(52,), (52, 52, 52, 52), (52, 43, 30, 12)], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_a_full_cache_with_hidden_keys(family, lengths, attention):
    """A prompt of 38, single tokens, a second turn of 8, single tokens."""
    model = model_of(family, attention)
    full, compressed = DynamicCache(), DynamicCache()
    tokens, mask = prompts(*lengths)
    windows, seen = None, {}
    for ids, so_far, positions, everything in forwards(tokens, mask, (38, 1, 1, 1, 8, 1, 2)):
        known = {"attention_mask": so_far, "position_ids": positions.clamp(min=0)}
        with compress(model, METHOD):
            actual = model(ids, cache=compressed, **known).logits
        memory = pyramid_cache(compressed)
        if windows is None:
            windows = memory.config.windows
            seen = {n: everything[:, None].expand(-1, k, -1) for n, k in heads(memory)}
            spy_on(memory, seen)
        hooks = hide_all_but(model, seen, everything, positions, windows)
        expected = model(ids, cache=full, **known).logits
        for hook in hooks:
            hook.remove()
        is_token = positions >= 0
        assert (actual - expected)[is_token].abs().max() <= TOLERANCE
        assert expected[is_token].std() > 0.5
    assert hooks_of(model) == 0
    assert max(memory.lengths.values()) < 38


def heads(memory: PyramidCache) -> list[tuple[int, int]]:
    return [(layer, memory.config.n_kv_heads) for layer in range(memory.config.n_layers)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("method", [METHOD, SnapKV(11, window=4), H2O(11, window=4),
    StreamingLLM(11, window=4), Random(11, window=4)], ids=lambda m: type(m).__name__)  # fmt: skip
def test_the_same_tokens_stay_as_in_our_own_model(tiny, method, attention):
    """Two implementations of the model, one memory: equal choices and equal answers."""
    ours, _ = tiny("qwen3")
    model = model_of("qwen3", attention)
    tokens, mask = prompts(40, 27)
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, -1)
    cache = PyramidCache(ours.config, method)
    expected = generate(ours, tokens, 8, positions=positions, cache=cache)
    with compress(model, method):
        out = model.generate(
            tokens, attention_mask=mask, max_new_tokens=8, return_dict_in_generate=True
        )
    memory = pyramid_cache(out.cache)
    assert out.sequences[:, 40:].tolist() == expected
    assert memory.nbytes == cache.nbytes and memory.lengths == cache.lengths
    for layer in range(3):
        assert torch.equal(memory.positions(layer), cache.positions(layer))


@functools.cache
def golden_model() -> LlamaForCausalLM:
    """The model that kvpress ran on: parameters drawn in the order of their names."""
    config = LlamaConfig(**GOLDEN["sizes"], bos_token_id=None, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(GOLDEN["seed"])
    for name, p in sorted(model.named_parameters()):
        is_norm = "norm" in name
        drawn = (torch.rand if is_norm else torch.randn)(p.shape, generator=generator)
        p.copy_(drawn + 0.5 if is_norm else GOLDEN["std"] * drawn)
    return model


@pytest.mark.parametrize("case", range(len(GOLDEN["cases"])))
def test_kvpress_keeps_the_same_tokens(case):
    case = GOLDEN["cases"][case]
    counts = tuple(len(heads[0]) for heads in case["kept"])
    n = case["n_tokens"]
    method = Scheduled(
        budget=n,
        window=case["window"],
        kernel=case["kernel"],
        pooling="average",
        average_queries=True,
        edge_bias=True,
        schedule=lambda *_: counts,
    )
    ids = torch.randint(97, (1, n), generator=torch.Generator().manual_seed(n))
    model, cache = golden_model(), DynamicCache()
    with compress(model, method):
        model(ids, cache=cache)
    for layer, expected in enumerate(case["kept"]):
        assert pyramid_cache(cache).positions(layer)[0].tolist() == expected


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_two_calls_in_a_row_of_different_length(attention):
    model = model_of("llama", attention)
    with compress(model, METHOD):
        for n, new in ((40, 3), (21, 9), (33, 1)):
            tokens, mask = prompts(n, n, seed=n)
            out = model.generate(
                tokens, attention_mask=mask, max_new_tokens=new, return_dict_in_generate=True
            )
            # The last new token is never fed back.
            grown = tuple(b + new - 1 for b in METHOD.budgets(3, n))
            assert tuple(pyramid_cache(out.cache).lengths.values()) == grown
            assert out.cache.get_seq_length() == n + new - 1


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("own_cache", [False, True])
def test_a_second_turn_goes_on_where_the_first_ended(attention, own_cache):
    """Only the new tokens are fed, at their true positions, to the cache of the first turn."""
    model = model_of("llama", attention)
    tokens, mask = prompts(30, 17)
    turn = torch.randint(1, 97, (2, 6), generator=torch.Generator().manual_seed(1))
    fed = []
    options = {"return_dict_in_generate": True, "max_new_tokens": 5}
    with compress(model, METHOD):
        cache = DynamicCache() if own_cache else None
        first = model.generate(tokens, attention_mask=mask, cache=cache, **options)
        assert not own_cache or first.cache is cache
        hook = model.base_model.register_forward_pre_hook(
            lambda m, a, k: fed.append(k["position_ids"].tolist()), with_kwargs=True
        )
        ids = torch.cat([first.sequences, turn], dim=1)
        mask = torch.cat([mask, mask.new_ones(2, 11)], dim=1)
        second = model.generate(ids, attention_mask=mask, cache=first.cache, **options)
        hook.remove()
    assert fed[0] == [list(range(34, 41)), list(range(21, 28))]
    assert second.cache.get_seq_length() == 30 + 5 + 6 + 4
    assert sum(pyramid_cache(second.cache).lengths.values()) == 3 * (12 + 4)


def test_a_budget_above_the_prompt_changes_nothing():
    model = model_of("qwen2", "sdpa")
    tokens, mask = prompts(30, 14)
    plain = model.generate(tokens, attention_mask=mask, max_new_tokens=9)
    for method in (PyramidKV(30), SnapKV(300), Full()):
        with compress(model, method):
            assert model.generate(tokens, attention_mask=mask, max_new_tokens=9).equal(plain)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_prompts(n):
    model = model_of("llama", "eager")
    tokens, mask = prompts(n, n)
    plain = model.generate(tokens, attention_mask=mask, max_new_tokens=6)
    with compress(model, PyramidKV(ratio=0.04)):
        assert model.generate(tokens, attention_mask=mask, max_new_tokens=6).equal(plain)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_first_token_is_the_full_models(attention):
    model = model_of("mistral", attention)
    tokens, mask = prompts(45, 20)
    plain = model(tokens, attention_mask=mask).logits
    with compress(model, METHOD):
        assert torch.equal(model(tokens, attention_mask=mask).logits, plain)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sdpa_and_eager_keep_and_answer_alike(attention):
    tokens, mask = prompts(45, 20)
    out = []
    for kind in ("sdpa", attention):
        model = model_of("llama-3-tied", kind)
        with compress(model, METHOD, every=5):
            out.append(model.generate(tokens, attention_mask=mask, max_new_tokens=12))
    assert out[0].equal(out[1])


@pytest.mark.parametrize("bits", [None, 8])
def test_beams_follow_their_rows(bits):
    """With everything kept, beam search finds what it finds without us."""
    model = model_of("llama", "sdpa")
    tokens, mask = prompts(20, 11)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    plain = model.generate(tokens, attention_mask=mask, **options)
    with compress(model, Full(), bits=bits):
        if bits is None:
            assert model.generate(tokens, attention_mask=mask, **options).equal(plain)
        else:
            assert model.generate(tokens, attention_mask=mask, **options).shape[0] == 2
    with compress(model, METHOD):
        several = model.generate(tokens, attention_mask=mask, **options)
        alone = model.generate(tokens[:1], attention_mask=mask[:1], **options)
    n = min(several.shape[1], alone.shape[1])
    assert several[0, :n].tolist() == alone[0, :n].tolist()


def test_rows_are_reordered_once_for_all_layers():
    model, cache = model_of("llama", "sdpa"), DynamicCache()
    tokens, mask = prompts(30, 21, 24)
    with compress(model, METHOD):
        model(tokens, attention_mask=mask, cache=cache)
        kept = [pyramid_cache(cache).positions(layer).clone() for layer in range(3)]
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        cache.batch_repeat_interleave(2)
    for layer, before in enumerate(kept):
        after = pyramid_cache(cache).positions(layer)
        assert torch.equal(after, before[[2, 2, 0, 0, 1, 1]])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_no_query_is_left_without_a_key(attention):
    """Fused kernels may return NaN for such a row; padding looks at everything instead."""
    layer = model_of("llama", attention).base_model.layers[0].self_attn
    mask = torch.tensor([[False, False, False], [True, False, True]]).expand(2, 2, 2, 3)
    given = _as_transformers_wants(mask, layer, {"hidden_states": torch.zeros(2, 2, 48)})
    seen = given if given.dtype == torch.bool else given == 0
    assert seen.shape == (2, 6, 2, 3)
    assert seen[1, 4].tolist() == [[True, True, True], [True, False, True]]


def test_a_prompt_in_chunks_is_chosen_from_in_chunks():
    model = model_of("llama", "sdpa")
    tokens, mask = prompts(48, 48)
    memory = []
    append = PyramidCache.append

    def noted(self, *arguments):
        out = append(self, *arguments)
        memory.append(out[0].shape[2])
        return out

    PyramidCache.append = noted
    try:
        with compress(model, METHOD):
            out = model.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=4,
                prefill_chunk_size=16,
                return_dict_in_generate=True,
            )
    finally:
        PyramidCache.append = append
    assert out.cache.get_seq_length() == 48 + 3
    assert max(memory) <= 16 + max(METHOD.budgets(3, 48))
    assert sum(pyramid_cache(out.cache).lengths.values()) == 3 * (12 + 3)


def test_bytes_of_the_real_cache():
    model = model_of("qwen3", "sdpa")
    tokens, mask = prompts(40, 40)
    cache = DynamicCache()
    with compress(model, METHOD):
        model(tokens, attention_mask=mask, cache=cache)
    c = model.config
    expected = 2 * 2 * 3 * 12 * c.num_key_value_heads * c.head_dim * 4
    assert pyramid_cache(cache).nbytes == expected


def test_nothing_is_left_behind():
    model = model_of("llama", "sdpa")
    tokens, mask = prompts(40, 22)
    plain = model.generate(tokens, attention_mask=mask, max_new_tokens=4)
    with pytest.raises(KeyError, match="mine"), compress(model, METHOD):
        assert hooks_of(model) == 1 + 2 * 3
        raise KeyError("mine")
    assert hooks_of(model) == 0
    out = model.generate(
        tokens, attention_mask=mask, max_new_tokens=4, return_dict_in_generate=True
    )
    assert out.sequences.equal(plain)
    with pytest.raises(ValueError, match=r"not made inside compress"):
        pyramid_cache(out.cache)
    with pytest.raises(ValueError, match=r"not made inside compress"):
        pyramid_cache(DynamicCache())


def test_without_a_cache_there_is_nothing_to_compress():
    model = model_of("llama", "sdpa")
    tokens, mask = prompts(40, 22)
    plain = model(tokens, attention_mask=mask, use_cache=False).logits
    with compress(model, METHOD):
        out = model(tokens, attention_mask=mask, use_cache=False)
    assert torch.equal(out.logits, plain) and out.cache is None


def test_a_cache_can_be_emptied_and_used_again():
    model = model_of("llama", "sdpa")
    cache = DynamicCache()
    with compress(model, METHOD):
        for n in (40, 25):
            cache.reset()
            model(prompts(n, n)[0], cache=cache)
            assert cache.get_seq_length() == n
            assert tuple(pyramid_cache(cache).lengths.values()) == METHOD.budgets(3, n)


def test_caches_that_cannot_be_compressed_are_refused():
    model = model_of("llama", "sdpa")
    tokens, mask = prompts(20, 20)
    filled = DynamicCache()
    model(tokens, cache=filled)
    with compress(model, METHOD):
        with pytest.raises(ValueError, match=r"holds 20 tokens that were never chosen from"):
            model(tokens, cache=filled)
        with pytest.raises(ValueError, match=r"StaticCache cannot be compressed"):
            model(tokens, cache=StaticCache(config=model.config, max_cache_len=40))
        with pytest.raises(ValueError, match=r"attention mask of shape \(2, 1, 20, 20\)"):
            model(tokens, attention_mask=torch.ones(2, 1, 20, 20, dtype=torch.bool))
        begun = DynamicCache()
        model(tokens, attention_mask=mask, cache=begun)
    with pytest.raises(ValueError, match=r"used outside compress"):
        model(tokens[:, :1], cache=begun)


def test_models_that_cannot_be_compressed_are_refused():
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11))
    with pytest.raises(ValueError, match=r"'gpt2' is not supported; supported are llama"):
        compress(gpt2, METHOD).__enter__()
    model = build("llama")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match=r"attention 'flex_attention' is not supported"):
        compress(model, METHOD).__enter__()
    model = model_of("llama", "sdpa")
    with compress(model, METHOD):
        with pytest.raises(ValueError, match=r"compressed already"):
            compress(model, METHOD).__enter__()
        assert hooks_of(model) == 1 + 2 * 3
    with pytest.raises(ValueError, match=r"every is 0"):
        compress(model, METHOD, every=0).__enter__()
    assert hooks_of(model) == 0


def test_scores_of_a_broken_model_are_refused():
    model = build("llama")
    model.base_model.layers[1].self_attn.k_proj.weight[0, 0] = float("nan")
    with compress(model, METHOD), pytest.raises(ValueError, match=r"attention scores are NaN"):
        model(prompts(20, 20)[0])
    assert hooks_of(model) == 0
