"""The measurements of quality and cost measure what they say, each target and byte once."""

import math

import pytest
import torch
from tiny_models import VOCAB, assert_near

from kvpipe.cache import KVCache
from kvpipe.config import Config
from kvpipe.evaluate import (
    agreement,
    cache_bytes,
    decode_s,
    fill,
    perplexity,
    speed_ratio,
    token_losses,
    windows,
)
from kvpipe.texts import KINDS, documents, text_tokens
from kvpipe.transformer import Transformer

FLOAT32 = 1e-5  # a few rounding errors of float32, relative to the largest value


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(VOCAB, (61,), generator=torch.Generator().manual_seed(3))


def log_p(theirs, context: torch.Tensor, target: torch.Tensor) -> float:
    """What Hugging Face's model says of one target after one context."""
    with torch.no_grad():
        logits = theirs(context[None], use_cache=False).logits[0, -1]
    return logits.log_softmax(-1)[target].item()


# --- windows -----------------------------------------------------------------


@pytest.mark.parametrize("n_prefix", [0, 1, 2, 5])
@pytest.mark.parametrize("stride", [None, 1, 3])
@pytest.mark.parametrize("window", [7, 8, 60, 100])
@pytest.mark.parametrize("n_tokens", [9, 23, 61])
def test_every_target_counts_exactly_once(n_tokens, window, stride, n_prefix):
    counted = []
    for start, n in windows(n_tokens, window, stride, n_prefix):
        end = start + min(window, n_tokens - 1)
        assert start >= 0 and end <= n_tokens - 1
        assert n <= end - start - max(n_prefix - 1, 0), "a target inside the prefix counts"
        counted += range(end + 1 - n, end + 1)
    assert counted == list(range(max(n_prefix, 1), n_tokens))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 4), r"text of 1 tokens has nothing to predict"),
        ((20, 8, 9), r"stride 9 with windows of 8.*1\.\.8"),
        ((20, 8, 0), r"stride 0"),
        ((20, 8, 6, 4), r"stride 6 .* prefix of 4 tokens; it must lie in 1\.\.5"),
        ((20, 8, None, 9), r"prefix of 9 tokens does not fit a window of 8"),
        ((20, 0), r"window of 0"),
    ],
)
def test_windows_that_leave_gaps_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        windows(*arguments)


# --- losses ------------------------------------------------------------------


@pytest.mark.parametrize(("window", "stride"), [(7, 1), (10, 4), (12, 12)])
def test_losses_are_hugging_faces_target_by_target(tiny, tokens, window, stride):
    ours, theirs = tiny("llama")
    losses = token_losses(ours, tokens, window, stride, rows=3)
    starts = range(0, len(tokens) - 1 - window + stride, stride)
    starts = [min(start, len(tokens) - 1 - window) for start in starts]
    expected = []
    for target in range(1, len(tokens)):
        start = next(s for s in starts if s < target <= s + window)
        expected.append(-log_p(theirs, tokens[start:target], tokens[target]))
    assert_near(losses, torch.tensor(expected), FLOAT32)


@pytest.mark.parametrize("n_prefix", [1, 4, 12])
def test_a_prefix_read_first_changes_no_prediction_of_a_plain_cache(tiny, tokens, n_prefix):
    ours, _ = tiny("qwen3")
    whole = token_losses(ours, tokens[:13], 12)
    behind = token_losses(ours, tokens[:13], 12, n_prefix=n_prefix, make_cache=KVCache)
    assert_near(behind, whole[n_prefix - 1 :], FLOAT32)
    assert_near(token_losses(ours, tokens[:13], 12, n_prefix=n_prefix), behind, FLOAT32)


def test_each_batch_of_windows_gets_a_fresh_cache_and_the_prefix_alone_first(tiny, tokens):
    made = []

    class Watched(KVCache):
        def __init__(self):
            super().__init__()
            self.lengths = []
            made.append(self)

        def append(self, layer, k, v, positions):
            self.lengths += [tuple(k.shape[::2])] if layer == 0 else []
            return super().append(layer, k, v, positions)

    losses = token_losses(tiny("llama")[0], tokens, 16, n_prefix=6, make_cache=Watched, rows=2)
    assert [cache.lengths for cache in made] == [[(2, 6), (2, 10)]] * 2 + [[(1, 6), (1, 10)]]
    assert len(losses) == len(tokens) - 6


def test_a_cache_that_forgets_is_seen_in_the_losses(tiny, tokens):
    class Forgets(KVCache):
        def append(self, layer, k, v, positions):
            k, v, seen = super().append(layer, k, v, positions)
            return k, v, seen.where(seen >= 3, -1)

    ours, _ = tiny("llama")
    kept, forgot = (
        token_losses(ours, tokens, 16, n_prefix=6, make_cache=make) for make in (KVCache, Forgets)
    )
    assert (kept - forgot).abs().max() > 0.01


def test_rows_at_once_change_nothing(tiny, tokens):
    ours, _ = tiny("mistral")
    one, four = (token_losses(ours, tokens, 9, 5, rows=rows) for rows in (1, 4))
    assert_near(one, four, FLOAT32)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(tokens):
    model = Transformer(Config(VOCAB, 24, 2, 4, 2, 6, 40))
    torch.nn.init.zeros_(model.head.weight)
    assert math.isclose(perplexity(model, tokens, 20), VOCAB, rel_tol=1e-6)


def test_agreement_is_the_share_of_equal_first_choices(tiny, tokens):
    ours, theirs = tiny("llama")
    other, _ = tiny("qwen2")
    assert agreement(ours, ours, tokens, 12, 5) == 1
    with torch.no_grad():
        choices = [model(tokens[None, :60])[0].argmax(-1) for model in (ours, other)]
        choices.append(theirs(tokens[None, :60]).logits[0].argmax(-1))
    expected = (choices[1] == choices[2]).double().mean().item()
    assert 0 < expected < 1
    assert agreement(other, ours, tokens, 60) == expected
    assert agreement(ours, other, tokens, 60) == expected


# --- cost --------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Transformer:
    config = Config(53, 24, 5, 4, 2, 6, 40, context=64, kv_source=(0, 1, 1, 3, 1))
    return Transformer(config).eval()


@pytest.mark.parametrize("rows", [1, 3])
def test_cache_bytes_are_the_closed_form(shared, rows):
    assert cache_bytes(shared, 37, rows=rows) == 2 * 3 * 2 * 6 * 4 * 37 * rows
    in_half = shared.__class__(shared.config).to(torch.bfloat16)
    assert cache_bytes(in_half, 37, rows=rows) == 2 * 3 * 2 * 6 * 2 * 37 * rows


def test_a_filled_cache_has_been_asked_what_a_forward_asks(shared):
    def calls(use) -> list:
        class Watched(KVCache):
            def append(self, layer, k, v, positions):
                made.append(("append", layer, k.shape, v.shape, positions.tolist()))
                return super().append(layer, k, v, positions)

            def observe(self, layer, q, positions):
                made.append(("observe", layer, q.shape, positions.tolist()))

        made = []
        use(Watched())
        return made

    def forward(cache):
        for n in (4, 4, 1):
            shared(torch.zeros(2, n, dtype=torch.long), cache=cache)

    filled = calls(lambda cache: fill(shared, cache, 9, rows=2, chunk=4))
    assert filled == calls(forward)


@pytest.mark.parametrize("n", [0, 65])
def test_a_context_that_does_not_fit_is_refused(shared, n):
    with pytest.raises(ValueError, match=rf"{n} tokens do not fit a context of 1\.\.64"):
        fill(shared, KVCache(), n)


def test_decode_steps_are_single_tokens_on_a_filled_cache(shared, tiny):
    caches = []

    def make():
        caches.append(KVCache())
        return caches[-1]

    seconds = decode_s({"a": (shared, make), "b": (tiny("llama")[0], make)}, 20, 2, repeats=4)
    assert {name: len(s) for name, s in seconds.items()} == {"a": 4, "b": 4}
    assert [cache.seen for cache in caches] == [26, 26]
    assert min(map(min, seconds.values())) > 0


def test_speed_ratio_compares_medians():
    assert speed_ratio({"a": [1.0, 2.0, 90.0], "b": [6.0, 5.0, 1.0]}, "a", "b") == 2.5


# --- text --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_test_text_and_train_text_never_meet(kind):
    def first(part: str, n: int = 40) -> set[str]:
        return {text for text, _ in zip(documents(kind, part), range(n), strict=False)}

    test, train = first("test"), first("train")
    assert min(len(test), len(train)) >= 12
    assert not test & train


def test_text_is_the_same_every_time_and_short_text_is_refused():
    class Words:
        def __call__(self, text, add_special_tokens):
            ids = [len(word) for word in text.split()]
            return type("Encoding", (), {"input_ids": ids})

    first, again = (text_tokens(Words(), "docstrings", "test", 700) for _ in range(2))
    assert first.shape == (700,) and first.tolist() == again.tolist()
    assert first[:300].tolist() == text_tokens(Words(), "docstrings", "test", 300).tolist()
    with pytest.raises(ValueError, match=r"test part .* 'manual' has \d+ tokens, 9999999 are"):
        text_tokens(Words(), "manual", "test", 9_999_999)
    for wrong in (("poems", "test"), ("manual", "all")):
        with pytest.raises(ValueError, match=r"is unknown; choose one of"):
            next(documents(*wrong))


@pytest.mark.model
def test_the_real_model_reads_both_kinds_as_well_as_expected(real):
    model, tokenizer = real
    for kind, low, high in (("manual", 8, 18), ("docstrings", 12, 30)):
        assert low < perplexity(model, text_tokens(tokenizer, kind, "test", 1025)) < high
