"""Claims of the literature that belong to chapter 1, computed. `book/ledger.yml` points here."""

from pydoc_data.topics import topics

import pytest
import torch

from kvpipe.attention import attention, attention_weights
from kvpipe.cache import KVCache
from kvpipe.checkpoints import load
from kvpipe.config import Config

LLAMA3_8B = Config(
    vocab_size=128_256, width=4096, n_layers=32, n_heads=32, n_kv_heads=8, head_size=128,
    ffn_width=14_336,
)  # fmt: skip
GIB = 2**30


@pytest.fixture(scope="module")
def real():
    """The default model, for reading only."""
    model, tokenizer = load()
    return model.requires_grad_(False), tokenizer


def test_llama3_8b_caches_128_kib_per_token_and_not_512():
    assert LLAMA3_8B.kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2 == 128 * 1024
    counted_by_query_heads = LLAMA3_8B.kv_bytes_per_token() * 32 // 8
    assert counted_by_query_heads == 512 * 1024
    assert 8192 * LLAMA3_8B.kv_bytes_per_token() == 1 * GIB


def test_weights_outweigh_the_cache_of_llama3_8b_at_8192_tokens():
    weights = 2 * LLAMA3_8B.n_parameters()
    one_sequence = 8192 * LLAMA3_8B.kv_bytes_per_token()
    assert weights / one_sequence == pytest.approx(14.96, abs=0.01)
    assert weights // LLAMA3_8B.kv_bytes_per_token() == 122_532  # tokens until they are equal


def test_a_million_tokens_of_llama3_8b_need_more_than_any_80_gb_device():
    assert 2**20 * LLAMA3_8B.kv_bytes_per_token() == 128 * GIB > 80e9


def test_reading_the_cache_gives_h_over_k_flops_per_byte():
    flops = LLAMA3_8B.flops_per_token(4097) - LLAMA3_8B.flops_per_token(4096)
    assert flops / LLAMA3_8B.kv_bytes_per_token(bytes_per_element=2) == 32 / 8


@pytest.mark.model
def test_the_cache_grows_in_proportion_to_the_tokens(real):
    model, _ = real
    for T in (3, 41, 200):
        cache = KVCache(capacity=16)
        model(torch.arange(2 * T).view(2, T), None, cache, n_logits=1)
        assert cache.nbytes == 2 * T * 46_080


TEXTS = pytest.mark.parametrize(
    ("topic", "start"), [("import", 0), ("naming", 40), ("objects", 41)]
)


def watch(real, topic, start, measured):
    """`measured` of the weights (H, 256, 512) of each layer's later half, in layer order."""
    model, tokenizer = real
    tokens = torch.tensor([tokenizer(topics[topic]).input_ids[start : start + 512]])
    found = []

    def look(q, k, v, *where):
        found.append(measured(attention_weights(q, k, *where)[0, :, 256:]).item())
        return attention(q, k, v, *where)

    model(tokens, attend=look)
    return found


@pytest.mark.model
@TEXTS
def test_the_first_token_draws_attention_whatever_it_is(real, topic, start):
    shares = watch(real, topic, start, lambda weights: weights[:, :, 0].mean())
    lower, upper, evenly_spread = sum(shares[:12]) / 12, sum(shares[12:]) / 18, 1 / 384
    assert upper > 0.3 > 100 * evenly_spread
    assert lower < 0.15


@pytest.mark.model
@TEXTS
def test_attention_is_broadest_in_the_bottom_layer_and_does_not_end_narrow(real, topic, start):
    entropy = watch(real, topic, start, lambda w: torch.special.entr(w).sum(dim=-1).mean())
    assert 5.05 < entropy[0] < 5.25 and max(entropy[1:]) < entropy[0] - 1
    assert 1.45 < entropy[18] < 1.65 and min(entropy) == entropy[18]
    assert 2.65 < entropy[-1] < 2.95  # a funnel would end with its narrowest layer
