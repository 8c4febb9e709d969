"""What chapter 6 measures with: entropy per layer, shared prefills, costs, results in files."""

import math

import pytest
import torch

from kvpipe.generate import generate
from kvpipe.pyramid import H2O, Full, PyramidCache, PyramidKV, Random, SnapKV, StreamingLLM
from kvpipe.pyramid.bench import decode_costs, selection_time
from kvpipe.pyramid.budgets import proportional
from kvpipe.pyramid.calibration import attention_entropy
from kvpipe.pyramid.experiments import Found, RecordingCache, load, needles, save
from kvpipe.transformer import Transformer

METHODS = [
    PyramidKV(12, window=4),
    SnapKV(11, window=4),
    H2O(11, window=4),
    StreamingLLM(11, window=4),
    Random(11, window=4),
    Full(),
]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


def drawn(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(97, shape, generator=torch.Generator().manual_seed(seed))


def test_even_attention_has_the_entropy_of_its_length(tiny):
    """With zero queries each of 20 tokens looks at all before it alike: mean of log 1 .. log 20."""
    config = tiny("llama")[0].config
    model = Transformer(config)
    for block in model.blocks.values():
        torch.nn.init.zeros_(block.attention.query.weight)
    for n_queries in (20, 6):
        expected = sum(math.log(n) for n in range(21 - n_queries, 21)) / n_queries
        entropies = attention_entropy(model, drawn(2, 20), n_queries)
        assert entropies == pytest.approx([expected] * 3, rel=1e-5)


def test_entropies_are_weights_for_budgets(tiny):
    model, _ = tiny("llama")
    weights = attention_entropy(model, drawn(2, 40))
    assert all(0 < w < math.log(40) for w in weights) and len(set(weights)) == 3
    kept = proportional(3, 1000, 50, 8, weights)
    assert sum(kept) == 150
    assert kept.index(max(kept)) == weights.index(max(weights))
    with pytest.raises(ValueError, match=r"n_queries is 0"):
        attention_entropy(model, drawn(2, 40), 0)


@pytest.mark.parametrize("kv_source", [(0, 1, 2), (0, 0, 2)])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_replayed_choice_is_the_one_of_the_forward(tiny, method, kv_source):
    from dataclasses import replace

    base, _ = tiny("llama")
    model = Transformer(replace(base.config, kv_source=kv_source))
    model.load_state_dict(base.state_dict(), strict=False)
    prompt, record = drawn(2, 40), RecordingCache()
    logits = model(prompt, cache=record, n_logits=1)
    first = logits[:, -1].argmax(-1, keepdim=True)
    for _ in range(2):  # a record can be replayed more than once
        replayed = record.replay(PyramidCache(model.config, method))
        direct = PyramidCache(model.config, method)
        expected = generate(model, prompt, 7, cache=direct)
        rest = generate(model, first, 6, cache=replayed)
        assert [[f, *r] for f, r in zip(first[:, 0].tolist(), rest, strict=True)] == expected
        assert replayed.nbytes == direct.nbytes and replayed.lengths == direct.lengths


def test_costs_are_measured_and_counted(tiny):
    model, _ = tiny("llama")
    time = selection_time(model, PyramidKV(12, window=4), 50, repeats=2)
    assert time.n_tokens == 50 and 0 < time.selection_s < time.prefill_s and 0 < time.share < 1
    full, small, coarse = decode_costs(
        model, {"small": SnapKV(10, window=4), "coarse": (SnapKV(10, window=4), 4)}, 40, repeats=3
    )
    assert (full.name, full.speedup, full.share) == ("full", 1, 1)
    assert small.share == 10 / 40 and small.nbytes == 10 * 3 * 2 * 2 * 8 * 4
    assert coarse.nbytes == 3 * 2 * (10 * 8 + 8 * 8 + 8 * 10)
    assert small.step_s > 0 and small.speedup == full.step_s / small.step_s


def test_results_come_back_from_their_file(tmp_path):
    results = [
        Found("a", 1024, 64, True, 3, 8, (0.125, 0.69), 1000),
        Found("b", 1024, 64, False, 0, 8, (0.0, 0.3), 1001),
    ]
    save(results, tmp_path / "x.json", {"command": "none", "seed": 3})
    assert load(tmp_path / "x.json") == results


@pytest.mark.model
@pytest.mark.parametrize("knows_question", [True, False])
def test_a_full_memory_finds_the_code_and_a_recent_one_only_at_the_end(real, knows_question):
    model, tokenizer = real
    methods = {"full": Full(), "recent": StreamingLLM(64)}
    options = {"knows_question": knows_question, "n_texts": 1, "seed": 3}
    full, recent = needles(model, tokenizer, methods, 300, depths=(0.2, 0.6), **options)
    assert full.n_found == full.n_asked == 2
    assert recent.n_found == 0 and recent.nbytes == 30 * 64 * 2 * 3 * 64 * 4
    assert recent.interval[0] == 0 and full.interval[1] == 1
