"""A compressed cache equals a full one whose evicted keys are hidden; and what it costs."""

import copy
from dataclasses import replace

import pytest
import torch

from kvpipe.attention import attention
from kvpipe.cache import KVCache
from kvpipe.config import Config
from kvpipe.evaluate import cache_bytes, fill
from kvpipe.generate import generate, left_pad
from kvpipe.pyramid import (
    H2O,
    Full,
    PyramidCache,
    PyramidKV,
    Random,
    SnapKV,
    StreamingLLM,
)
from kvpipe.pyramid.quantize import quantized_bytes
from kvpipe.transformer import Transformer

# float32, logits of a few units: sums in another order differ by some 1e-5 of the largest.
TOLERANCE = 1e-4
METHODS = [
    PyramidKV(12, window=4, kernel=3),
    SnapKV(9, window=3, pooling="average"),
    H2O(11, window=4),
    StreamingLLM(10, window=4),
    Random(12, window=4),
]
BY_NAME = pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def rows(*lengths: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens and positions of rows of these lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    return left_pad([torch.randint(97, (n,), generator=generator).tolist() for n in lengths])


def recorder(seen: list[torch.Tensor]):
    """Plain attention that notes the key positions of every call."""

    def attend(q, k, v, q_positions, k_positions, window=None):
        per_head = k_positions if k_positions.ndim == 3 else k_positions[:, None]
        seen.append(per_head.expand(-1, k.shape[1], -1))
        return attention(q, k, v, q_positions, k_positions, window)

    return attend


def hider(seen: list[torch.Tensor]):
    """Plain attention over everything, where keys that are not in `seen` become padding."""
    calls = iter(seen)

    def attend(q, k, v, q_positions, k_positions, window=None):
        kept = next(calls)
        everything = k_positions[:, None].expand(-1, k.shape[1], -1)
        is_kept = (everything[..., None] == kept[..., None, :]).any(-1)
        return attention(q, k, v, q_positions, everything.masked_fill(~is_kept, -1), window)

    return attend


def compare(model: Transformer, cache: PyramidCache, parts, tolerance: float = TOLERANCE) -> None:
    """Feed the parts (tokens, positions) to both caches; all logits of real tokens agree."""
    full = KVCache()
    for tokens, positions in parts:
        seen: list[torch.Tensor] = []
        actual = model(tokens, positions, cache, recorder(seen))
        expected = model(tokens, positions, full, hider(seen))
        is_token = positions >= 0
        error = (actual - expected)[is_token].abs().max()
        assert error <= tolerance * expected[is_token].abs().max()


def steps(positions: torch.Tensor, n: int, seed: int = 9):
    """n decoded tokens after the last of `positions`."""
    for i in range(n):
        tokens, _ = rows(*[1] * len(positions), seed=seed + i)
        positions = positions[:, -1:] + 1
        yield tokens, positions


@pytest.mark.parametrize("family", ["llama", "qwen2-sliding-tied", "qwen3", "mistral"])
@BY_NAME
def test_a_compressed_cache_is_a_full_one_with_hidden_keys(tiny, method, family):
    """A padded batch, single tokens, a second turn, single tokens."""
    model, _ = tiny(family)
    cache = PyramidCache(model.config, method)
    prompt = rows(33, 21, 6)
    parts = [prompt, *steps(prompt[1], 4)]
    turn, _ = rows(7, 7, 7, seed=6)
    after = parts[-1][1][:, -1:] + 1 + torch.arange(7)
    parts += [(turn, after), *steps(after, 3, seed=20)]
    compare(model, cache, parts)
    assert max(cache.lengths.values()) < 33 + 4


@BY_NAME
def test_chunks_of_a_prompt(tiny, method):
    """A long prompt in parts; the memory never holds more than a chunk and what was kept."""
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, method)
    tokens, positions = rows(50, 31)
    parts = list(zip(tokens.split(12, dim=1), positions.split(12, dim=1), strict=True))
    compare(model, cache, parts)
    bound = max(method.budgets(3, 50))
    assert max(cache.lengths.values()) <= bound
    assert cache.seen == 50


@pytest.mark.parametrize("every", [1, 3])
@BY_NAME
def test_choosing_again_while_decoding_bounds_the_memory(tiny, method, every):
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, method, every=every)
    prompt = rows(25, 14)
    for part in [prompt, *steps(prompt[1], 11)]:
        model(*part, cache)
        plans = [method.budgets(3, n) for n in range(1, int(part[1].max()) + 2)]
        for layer, n in cache.lengths.items():
            assert n <= max(plan[layer] for plan in plans) + every - 1
    compare(model, PyramidCache(model.config, method, every=every), [prompt, *steps(prompt[1], 11)])


def test_a_choice_every_third_token(tiny):
    model, _ = tiny("llama")
    cache, held = PyramidCache(model.config, SnapKV(10, window=4), every=3), []
    prompt = rows(25, 25)
    for part in [prompt, *steps(prompt[1], 7)]:
        model(*part, cache)
        held.append(cache.lengths[1])
    assert held == [10, 11, 12, 10, 11, 12, 10, 11]


@pytest.mark.parametrize("method", [SnapKV(12, window=4, kernel=1), H2O(12, window=4)])
def test_a_choice_while_decoding_has_the_evidence_of_one_forward(tiny, method):
    """Twenty tokens one by one, or at once: the last queries, or all of them, are the same."""
    c = tiny("llama")[0].config
    at_once, one_by_one = PyramidCache(c, method), PyramidCache(c, method, every=20)
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 6, 20, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, 20, 8, generator=generator)
    positions = rows(20, 13)[1]
    at_once.append(0, k, v, positions)
    at_once.observe(0, q, positions)
    for i in range(20):
        part = slice(i, i + 1)
        one_by_one.append(0, k[:, :, part], v[:, :, part], positions[:, part])
        one_by_one.observe(0, q[:, :, part], positions[:, part])
    assert one_by_one.lengths == {0: 12}
    assert one_by_one.positions(0).tolist() == at_once.positions(0).tolist()


def test_heavy_hitters_remember_earlier_queries(tiny):
    """In two chunks that evict nothing, the sums are those of one forward."""
    model, _ = tiny("llama")
    tokens, positions = rows(30, 30)
    whole, parts = (PyramidCache(model.config, H2O(20, window=4)) for _ in range(2))
    model(tokens, positions, whole)
    model(tokens[:, :18], positions[:, :18], parts)
    model(tokens[:, 18:], positions[:, 18:], parts)
    assert whole.positions(1).tolist() == parts.positions(1).tolist()


@BY_NAME
def test_the_prompt_itself_is_computed_exactly(tiny, method):
    model, _ = tiny("qwen3")
    tokens, positions = rows(40, 29)
    actual = model(tokens, positions, PyramidCache(model.config, method))
    expected = model(tokens, positions, KVCache())
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
@BY_NAME
def test_prompts_within_the_budget_pass_through(tiny, method, n):
    model, _ = tiny("llama")
    tokens, _ = rows(n, n)
    cache = PyramidCache(model.config, replace(method, budget=30))
    full = KVCache()
    assert generate(model, tokens, 8, cache=cache) == generate(model, tokens, 8, cache=full)
    assert cache.nbytes == full.nbytes and cache.seen == full.seen


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_prompts_decode_without_nan(tiny, n):
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, PyramidKV(ratio=0.04))
    compare(model, cache, [rows(n, n), *steps(torch.full((2, 1), n - 1), 3)])


@BY_NAME
def test_rows_are_as_if_alone(tiny, method):
    """Batch, order and padding change neither what a row keeps nor what it answers."""
    model, _ = tiny("llama")
    tokens, positions = rows(34, 13, 5)
    together = PyramidCache(model.config, method)
    logits = [model(t, p, together) for t, p in [(tokens, positions), *steps(positions, 3)]]
    for row, length in enumerate((34, 13, 5)):
        alone = PyramidCache(model.config, method)
        mine = positions[row : row + 1, -length:]
        parts = [(tokens[row : row + 1, -length:], mine)]
        later = [(t[row : row + 1], p[row : row + 1]) for t, p in steps(positions, 3)]
        for (t, p), batch in zip(parts + later, logits, strict=True):
            torch.testing.assert_close(
                model(t, p, alone)[0, -1], batch[row, -1], rtol=TOLERANCE, atol=TOLERANCE
            )
        for layer in range(3):
            kept = together.positions(layer)[row]
            mine = alone.positions(layer)[0].expand(2, -1)
            assert [sorted(set(h.tolist()) - {-1}) for h in kept] == mine.tolist()


def test_new_tokens_go_on_at_their_true_positions(tiny):
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, PyramidKV(10, window=4))
    model(torch.zeros(2, 40, dtype=torch.long), cache=cache)
    assert cache.seen == 40 and max(cache.lengths.values()) < 20
    model(torch.zeros(2, 1, dtype=torch.long), cache=cache)
    assert cache.positions(2)[..., -1].unique().tolist() == [40]
    with pytest.raises(ValueError, match=r"position 64 is outside"):
        model(torch.zeros(2, 24, dtype=torch.long), cache=cache)


def test_decoding_adds_one_token_a_step_and_says_so(tiny):
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, PyramidKV(10, window=4))
    tokens, _ = rows(30, 30)
    generate(model, tokens, 1, cache=cache)
    before = cache.lengths
    assert sum(before.values()) == 3 * 10
    generate(model, tokens[:, :1], 20, cache=cache)
    assert cache.lengths == {layer: n + 20 for layer, n in before.items()}


def test_later_turns_may_be_added_whole(tiny):
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, SnapKV(10, window=4), later_turns=False)
    prompt = rows(20, 20)
    turn, _ = rows(9, 9, seed=3)
    parts = [prompt, (turn, torch.arange(20, 29).expand(2, 9))]
    compare(model, cache, parts)
    assert set(cache.lengths.values()) == {19}


def test_two_questions_on_one_context(tiny):
    """A copy of the cache for each question: neither sees the other's, nor changes the first."""
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, PyramidKV(10, window=4))
    tokens, positions = rows(30, 30)
    model(tokens, positions, cache)
    kept = [cache.positions(layer).clone() for layer in range(3)]
    answers = []
    for seed in (1, 2, 1):
        question, _ = rows(5, 5, seed=seed)
        answers.append(generate(model, question, 6, cache=copy.deepcopy(cache)))
    assert answers[0] == answers[2] != answers[1]
    assert all(torch.equal(cache.positions(layer), kept[layer]) for layer in range(3))


# --- bytes -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_source", [(), (0, 1, 1, 3)])
def test_nbytes_is_the_formula_at_kv_head_granularity(dtype, kv_source):
    c = Config(53, 24, 4, 4, 2, 6, 40, kv_source=kv_source)
    model = Transformer(c).to(dtype)
    method = PyramidKV(20, window=4)
    rows, K, D = 3, 2, 6
    kept = method.budgets(len(c.kv_layers), 100)
    cache = fill(model, PyramidCache(c, method), 100, rows)
    assert tuple(cache.lengths.values()) == kept
    assert cache.nbytes == sum(kept) * 2 * rows * K * D * dtype.itemsize
    assert cache.nbytes == 20 * len(kept) * 2 * rows * K * D * dtype.itemsize
    assert cache.extra_bytes == sum(kept) * rows * K * 8  # positions, int64


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.5])
def test_a_ratio_is_the_share_of_bytes_kept(ratio):
    c = Config(53, 24, 5, 4, 2, 6, 40)
    model = Transformer(c)
    share = cache_bytes(model, 200, lambda: PyramidCache(c, PyramidKV(ratio=ratio)))
    assert share / cache_bytes(model, 200) == ratio


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_bytes_are_the_formula(bits):
    c = Config(53, 24, 4, 4, 2, 6, 40)
    method = PyramidKV(20, window=4)
    cache = fill(Transformer(c), PyramidCache(c, method, bits=bits), 100, 3)
    kept = method.budgets(4, 100)
    assert cache.nbytes == sum(quantized_bytes(n, 2, 6, bits, rows=3) for n in kept)
    k, v = torch.randn(2, 3, 2, 1, 6)
    cache.append(1, k, v, torch.full((3, 1), 100))
    assert (
        cache.nbytes == sum(quantized_bytes(n, 2, 6, bits, rows=3) for n in kept) + 2 * 3 * 2 * 24
    )


@pytest.mark.parametrize("bits, near", [(8, 0.05), (4, 0.6)])
def test_fewer_bits_change_the_answers_a_little(tiny, bits, near):
    """Against the same choice unquantised; the error of 4 bits is 17 times that of 8."""
    model, _ = tiny("llama")
    method = SnapKV(12, window=4)
    prompt = rows(40, 23)
    exact, coarse = (PyramidCache(model.config, method, bits=b) for b in (None, bits))
    errors = []
    for part in [prompt, *steps(prompt[1], 4)]:
        a, b = model(*part, exact), model(*part, coarse)
        errors.append(((a - b)[part[1] >= 0].abs().max() / a.abs().max()).item())
    assert errors[0] == 0 and 0 < max(errors) < near
    assert torch.equal(exact.positions(1), coarse.positions(1))


def test_a_quantised_cache_frees_what_it_was_made_from(tiny):
    model, _ = tiny("llama")
    cache = PyramidCache(model.config, Full(), bits=4)
    model(*rows(40, 40), cache)
    tensors = [x for s in cache._stores.values() for x in (s._k, s._v)]
    assert all(x.untyped_storage().nbytes() == 0 for x in tensors)


def test_padding_widens_no_range(tiny):
    """A quantised row answers as it does alone."""
    model, _ = tiny("llama")
    tokens, positions = rows(30, 11)
    together, alone = (PyramidCache(model.config, SnapKV(16, window=4), bits=4) for _ in range(2))
    parts = [(tokens, positions), *steps(positions, 3)]
    both = [model(*part, together)[1, -1] for part in parts]
    mine = [model(t[1:, -11:], p[1:, -11:], alone)[0, -1] for t, p in parts]
    torch.testing.assert_close(torch.stack(both), torch.stack(mine), rtol=1e-3, atol=1e-3)


def test_scoring_needs_memory_for_the_window_only():
    """No tensor of the choice is as large as the prompt squared."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.append(out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    n = 2000
    c = Config(53, 24, 1, 4, 2, 6, 40, context=n)
    cache = PyramidCache(c, SnapKV(64, window=8))
    k, v = torch.randn(2, 1, 2, n, 6)
    cache.append(0, k, v, torch.arange(n)[None])
    with Watch():
        cache.observe(0, torch.randn(1, 4, n, 6), torch.arange(n)[None])
    assert cache.lengths == {0: 64}
    assert max(sizes) <= 4 * 8 * n  # heads x window x keys


# --- order, sharing, mistakes ------------------------------------------------


@pytest.mark.parametrize("bits", [None, 8])
def test_rows_can_be_reordered(tiny, bits):
    model, _ = tiny("llama")
    prompt = rows(30, 22, 9)
    cache = PyramidCache(model.config, PyramidKV(12, window=4), bits=bits, every=4)
    model(*prompt, cache)
    order = torch.tensor([2, 0, 0])
    moved = copy.deepcopy(cache)
    moved.index_select(order)
    for tokens, positions in steps(prompt[1], 5):
        expected = model(tokens, positions, cache)[order]
        actual = model(tokens[order], positions[order], moved)
        torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_shared_layers_store_nothing_and_read_their_source(tiny):
    model, _ = tiny("llama")
    c = replace(model.config, kv_source=(0, 0, 2))
    shared = Transformer(c)
    shared.load_state_dict(model.state_dict(), strict=False)
    cache = PyramidCache(c, PyramidKV(12, window=4))
    prompt = rows(30, 22)
    compare(shared, cache, [prompt, *steps(prompt[1], 3)])
    assert set(cache.lengths) == {0, 2}
    with pytest.raises(ValueError, match=r"layer 1 stores nothing"):
        cache.append(1, *torch.randn(2, 1, 2, 1, 8), torch.zeros(1, 1, dtype=torch.long))


def test_what_no_query_will_see_again_takes_no_place(tiny):
    """With a sliding window of 4 a layer keeps the 3 tokens that the next query sees."""
    model, _ = tiny("mistral")
    cache = PyramidCache(model.config, SnapKV(10, window=8))
    model(*rows(30, 30), cache)
    assert cache.positions(0)[0, 0].tolist() == [27, 28, 29]


def test_one_cache_object_per_conversation_and_no_state_between(tiny):
    """One method object, several caches and lengths: each as if it were the first."""
    model, _ = tiny("llama")
    method = PyramidKV(12, window=4)
    for n in (40, 15, 33):
        cache = PyramidCache(model.config, method)
        model(*rows(n, n), cache)
        assert tuple(cache.lengths.values()) == method.budgets(3, n)
        assert sum(cache.lengths.values()) == 36


def test_mistakes_are_explained(tiny):
    model, _ = tiny("llama")
    with pytest.raises(ValueError, match=r"every is 0 tokens"):
        PyramidCache(model.config, SnapKV(20), every=0)
    with pytest.raises(ValueError, match=r"2 bits are not supported"):
        PyramidCache(model.config, SnapKV(20), bits=2)
    cache = PyramidCache(model.config, SnapKV(20))
    model(*rows(9, 9), cache)
    with pytest.raises(ValueError, match=r"batch of 1 rows meets a cache of 2 rows"):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    with pytest.raises(ValueError, match=r"at least one token"):
        model(torch.zeros(1, 0, dtype=torch.long), cache=PyramidCache(model.config, SnapKV(20)))


@pytest.mark.model
def test_the_real_model_reads_on_from_what_was_kept(real):
    model, _ = real
    c = model.config
    tokens = torch.arange(1000, 1600)[None]
    cache = PyramidCache(c, PyramidKV(64))
    actual = model(tokens, cache=cache, n_logits=1)
    expected = model(tokens, n_logits=1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert cache.nbytes == 30 * 64 * 2 * 3 * 64 * 4
    compare(model, PyramidCache(c, PyramidKV(64)), [(tokens, torch.arange(600)[None]),
            *((tokens[:, i : i + 1], torch.tensor([[600 + i]])) for i in range(3))])  # fmt: skip
