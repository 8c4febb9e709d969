"""Facts stand where they are said to stand, and an answer counts if it is right."""

import math

import pytest

from kvpipe import needles
from kvpipe.cache import KVCache
from kvpipe.config import Config
from kvpipe.needles import haystack, is_answer, retrieval, wilson
from kvpipe.transformer import Transformer


@pytest.mark.parametrize(
    ("found", "asked", "low", "high"),
    # Newcombe 1998, table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_equals_published_intervals(found, asked, low, high):
    interval = wilson(found, asked)
    assert math.isclose(interval[0], low, abs_tol=5e-5)
    assert math.isclose(interval[1], high, abs_tol=5e-5)


@pytest.mark.parametrize("pair", [(3, 2), (-1, 2), (0, 0)])
def test_a_share_of_nothing_is_refused(pair):
    with pytest.raises(ValueError, match="is not a share"):
        wilson(*pair)


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        *[("4821", True), ("The code is 4821.", True), ("48213", False), ("1 or 4821", False)],
        *[("14821", False), ("none", False), ("", False)],
    ],
)
def test_an_answer_is_the_first_number_and_exact(text, is_right):
    assert is_answer(text, "4821") is is_right


class Letters:
    """A tokenizer with a token per letter."""

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return type("Encoding", (), {"input_ids": [ord(letter) % 128 for letter in text]})

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        assert add_generation_prompt and not tokenize
        return f"<user>{messages[0]['content']}</user><model>"

    def decode(self, ids):
        return "".join(map(chr, ids))


@pytest.mark.parametrize("depths", [(0.0, 0.5, 1.0), (1.0, 0.25), (0.4,)])
def test_facts_stand_at_their_depths(depths):
    hay = haystack(Letters(), 3000, depths, seed=5)
    text = Letters().decode(hay.tokens)
    assert len(text) == 3000 and text.startswith("<user>")
    assert len(set(hay.codes)) == len(depths)
    facts_length = 0
    for depth, code, question in sorted(zip(depths, hay.codes, hay.questions, strict=True)):
        asked = Letters().decode(question)
        place = asked.partition("of the ")[2].partition("?")[0]
        fact = f"\n\nThe access code of the {place} is {code}.\n\n"
        n_filler = 3000 - 6 - sum(len(fact) for _ in depths)
        assert text.count(fact) == 1 and text.count(code) == 1
        assert abs(text.index(fact) - 6 - facts_length - depth * n_filler) < 10 * len(depths)
        assert asked.startswith("\n\n") and asked.endswith("</user><model>")
        facts_length += len(fact)


def test_a_seed_fixes_the_text_and_another_changes_it():
    one, same, other = (haystack(Letters(), 900, (0.5,), seed) for seed in (1, 1, 2))
    assert one == same and one.codes != other.codes and one.tokens != other.tokens


@pytest.mark.parametrize(
    ("n", "depths", "message"),
    [
        (900, (1.5,), r"numbers from 0 to 1"),
        (900, (0.5, 0.5), r"1 to 8 different numbers"),
        (900, (), r"1 to 8 different"),
        (40, (0.5,), r"40 tokens leave no text around 1 facts; ask for more"),
    ],
)
def test_facts_that_do_not_fit_are_refused(n, depths, message):
    with pytest.raises(ValueError, match=message):
        haystack(Letters(), n, depths)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("knows_question", [False, True])
def test_every_fact_is_asked_for_after_its_whole_text(monkeypatch, alone, knows_question):
    """A stand-in for `generate` that reads the conversation and knows codes of two depths only."""
    model = Transformer(Config(128, 8, 1, 2, 1, 4, 8, context=2000))
    read = []

    class Records(KVCache):
        text: tuple = ()

    def watched(tokens, cache, **options):
        cache.text += tuple(tokens[0].tolist())
        return Transformer.forward(model, tokens, cache=cache, **options)

    monkeypatch.setattr(model, "forward", watched)

    def answer(model, prompts, n, cache):
        text = Letters().decode((*cache.text, *prompts[0]))
        head, _, question = text.rpartition("\n\nWhat")
        place = question.partition("of the ")[2].partition("?")[0]
        fact = f"code of the {place} is "
        assert head.count("code of the") == (1 if alone else 3)
        read.append((len(cache.text), len(text)))
        share = head.index(fact) / len(head)
        code = head.partition(fact)[2][:4] if share > 0.2 else "0000"
        return [[ord(letter) for letter in code]]

    monkeypatch.setattr(needles, "generate", answer)
    found = retrieval(
        model,
        Letters(),
        1200,
        (0.0, 0.5, 1.0),
        n_texts=2,
        make_cache=Records,
        knows_question=knows_question,
        alone=alone,
    )
    assert [(r.depth, r.n_found, r.n_asked) for r in found] == [(0, 0, 2), (0.5, 2, 2), (1, 2, 2)]
    assert {r.n_text_tokens for r in found} == {1200}
    assert len(read) == 6 and {n for n, _ in read} == {0 if knows_question else 1200}
    assert found[1].share == 1 and found[1].interval == wilson(2, 2)


@pytest.mark.model
def test_the_real_model_finds_a_fact_whichever_way_it_is_asked(real):
    options = {"depths": (0.3, 0.8), "n_texts": 1, "alone": True}
    ways = [retrieval(*real, 500, knows_question=knows, **options) for knows in (False, True)]
    assert ways[0] == ways[1]
    assert sum(r.n_found for r in ways[0]) == 2
