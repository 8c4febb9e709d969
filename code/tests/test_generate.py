"""Generation continues a prompt as Hugging Face does, row by row, and samples what it says."""

import itertools
import math

import pytest
import torch
from tiny_models import CONTEXT, FAMILIES, VOCAB, hf_logits
from transformers import GenerationConfig

from kvpipe.attention import attention
from kvpipe.cache import KVCache
from kvpipe.generate import answer, generate, left_pad, probabilities, stream

PROMPTS = [[3, 50, 7, 7, 91, 12, 8], [44, 2], [9, 9, 30, 61]]


def hf_generate(model, tokens, positions, n: int) -> list[list[int]]:
    """Greedy continuations by Hugging Face that do not stop before `n` tokens."""
    settings = GenerationConfig(max_new_tokens=n, do_sample=False, pad_token_id=0)
    stop, model.generation_config.eos_token_id = model.generation_config.eos_token_id, None
    try:
        mask = (positions >= 0).long()
        out = model.generate(tokens, attention_mask=mask, generation_config=settings)
    finally:
        model.generation_config.eos_token_id = stop
    return out[:, tokens.shape[1] :].tolist()


def assert_same_greedy_choices(ours, theirs, model, tokens, positions) -> None:
    """Equal, or first different where Hugging Face's two best logits nearly tie.

    Float32 sums in another order move these logits by about 1e-5; below a gap of 1e-4 either
    choice is greedy, and what follows may differ.
    """
    for row, (mine, true) in enumerate(zip(ours, theirs, strict=True)):
        assert len(mine) == len(true)
        if (at := next((i for i in range(len(true)) if mine[i] != true[i]), None)) is None:
            continue
        whole = torch.cat([tokens[row], torch.tensor(true[:at], dtype=torch.long)])[None]
        tail = positions[row, -1] + 1 + torch.arange(at)
        logits = hf_logits(model, whole, torch.cat([positions[row], tail])[None])[0, -1]
        best, second = logits.topk(2).values.tolist()
        assert best - second < 1e-4, f"row {row} differs at token {at}, gap {best - second:.4g}"


class Counted:
    """A model that notes how many tokens each forward gets."""

    def __init__(self, model) -> None:
        self.model, self.config, self.lengths = model, model.config, []

    def parameters(self):
        return self.model.parameters()

    def __call__(self, tokens, *rest, **options):
        self.lengths.append(tokens.shape[1])
        return self.model(tokens, *rest, **options)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_greedy_continuations_equal_hugging_face(tiny, family):
    ours, theirs = tiny(family)
    tokens, positions = left_pad(PROMPTS)
    expected = hf_generate(theirs, tokens, positions, 20)
    assert len(set(itertools.chain(*expected))) > 10  # not one token again and again
    mine = generate(ours, tokens, 20, positions=positions)
    assert_same_greedy_choices(mine, expected, theirs, tokens, positions)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_gives_what_single_rows_give(tiny, family):
    ours, _ = tiny(family)
    tokens, positions = left_pad(PROMPTS, pad_token=VOCAB - 1)
    together = generate(ours, tokens, 20, positions=positions)
    assert together == [generate(ours, [prompt], 20)[0] for prompt in PROMPTS]


def test_left_pad_puts_padding_before_and_at_no_position():
    tokens, positions = left_pad([[5, 6, 7], [8]], pad_token=9)
    assert tokens.tolist() == [[5, 6, 7], [9, 9, 8]]
    assert positions.tolist() == [[0, 1, 2], [-1, -1, 0]]


def test_one_forward_for_the_prompt_and_one_per_token(tiny):
    model = Counted(tiny("llama")[0])
    steps = stream(model, [PROMPTS[0]], 5)
    assert model.lengths == []
    next(steps)
    assert model.lengths == [7]
    next(steps)
    assert model.lengths == [7, 1]
    list(steps)
    assert model.lengths == [7, 1, 1, 1, 1]


def test_streaming_equals_generating(tiny):
    ours, _ = tiny("qwen3")
    tokens, positions = left_pad(PROMPTS)
    for options in ({}, {"temperature": 1.2, "seed": 4}):
        steps = list(stream(ours, tokens, 12, positions=positions, **options))
        assert len(steps) == 12
        whole = generate(ours, tokens, 12, positions=positions, **options)
        assert [list(row) for row in zip(*steps, strict=True)] == whole


def test_a_row_ends_with_its_stop_token_and_the_others_go_on(tiny):
    ours, _ = tiny("llama")
    tokens, positions = left_pad(PROMPTS)
    free = generate(ours, tokens, 12, positions=positions)
    stops = {free[0][6], free[1][3]}
    ends = [next((i for i, t in enumerate(row) if t in stops), 11) for row in free]
    assert len(set(ends)) == 3  # three rows, three lengths
    options = {"positions": positions, "stop_tokens": stops}
    assert generate(ours, tokens, 12, **options) == [
        row[: end + 1] for row, end in zip(free, ends, strict=True)
    ]
    steps = list(stream(ours, tokens, 12, **options))
    for row, end in enumerate(ends):
        assert all((step[row] is None) == (i > end) for i, step in enumerate(steps))


def test_generation_ends_when_every_row_has_stopped(tiny):
    model = Counted(tiny("llama")[0])
    tokens, positions = left_pad(PROMPTS)
    free = generate(model, tokens, 12, positions=positions)
    stops = {row[4] for row in free}
    last = max(next(i for i, t in enumerate(row) if t in stops) for row in free)
    assert last < 11
    model.lengths.clear()
    generate(model, tokens, 12, positions=positions, stop_tokens=stops)
    assert len(model.lengths) == last + 1


def test_a_conversation_continues_from_its_cache(tiny):
    ours, _ = tiny("qwen2-sliding-tied")
    more, cache = [11, 12, 13], KVCache(capacity=2)
    first = generate(ours, [PROMPTS[0]], 6, cache=cache)[0]
    assert cache.seen == 7 + 5  # the last token was chosen, not fed
    second = generate(ours, [[first[-1], *more]], 6, cache=cache)[0]
    assert second == generate(ours, [[*PROMPTS[0], *first, *more]], 6)[0]


def test_a_padded_conversation_continues_with_its_positions(tiny):
    ours, _ = tiny("llama")
    tokens, positions = left_pad(PROMPTS)
    cache = KVCache()
    first = torch.tensor(generate(ours, tokens, 4, positions=positions, cache=cache))
    more = torch.cat([first[:, -1:], torch.tensor([[11, 12]] * 3)], dim=1)
    where = positions[:, -1:] + 4 + torch.arange(3)
    second = generate(ours, more, 6, positions=where, cache=cache)
    for row, prompt in enumerate(PROMPTS):
        alone = [*prompt, *first[row].tolist(), 11, 12]
        assert second[row] == generate(ours, [alone], 6)[0]


def test_attention_is_passed_on(tiny):
    ours, _ = tiny("mistral")
    lengths = []

    def watched(q, k, *rest):
        lengths.append((q.shape[2], k.shape[2], rest[-1]))
        return attention(q, k, *rest)

    assert generate(ours, [PROMPTS[0]], 3, attend=watched) == generate(ours, [PROMPTS[0]], 3)
    assert lengths == [(7, 7, 4)] * 3 + [(1, 8, 4)] * 3 + [(1, 9, 4)] * 3


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.7}], ids=str)
def test_a_seed_fixes_the_tokens(tiny, options):
    ours, _ = tiny("llama")
    sample = [
        generate(ours, [PROMPTS[0]] * 3, 15, temperature=1.5, seed=seed, **options)
        for seed in (1, 1, 2)
    ]
    assert sample[0] == sample[1] != sample[2]
    assert sample[0][0] != sample[0][1]  # rows of a batch draw their own tokens


def test_a_seed_leaves_torchs_generator_alone(tiny):
    ours, _ = tiny("llama")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    generate(ours, [PROMPTS[0]], 5, temperature=1.0, seed=9)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-39}], ids=str
)
def test_the_sharpest_sampling_is_greedy(tiny, options):
    ours, _ = tiny("qwen2")
    greedy = generate(ours, [PROMPTS[0]], 10)
    assert generate(ours, [PROMPTS[0]], 10, **{"temperature": 0.7, "seed": 1, **options}) == greedy


def by_hand(row, temperature, top_k, top_p) -> list[float]:
    """The sampling distribution from its definition, in Python floats."""
    odds = [math.exp((x - max(row)) / temperature) for x in row]
    order = sorted(range(len(row)), key=lambda i: -row[i])
    kept = order[: top_k or len(row)]
    total = sum(odds[i] for i in kept)
    nucleus, mass = [], 0.0
    for i in kept:
        nucleus.append(i)
        mass += odds[i] / total
        if top_p is not None and mass >= top_p:
            break
    total = sum(odds[i] for i in nucleus)
    return [odds[i] / total if i in nucleus else 0.0 for i in range(len(row))]


@pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("top_k", [None, 1, 2, 7, 23, 1000])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_probabilities_follow_the_definition(temperature, top_k, top_p):
    logits = torch.randn(3, 23, generator=torch.Generator().manual_seed(6)) * 2
    probs = probabilities(logits, temperature, top_k, top_p)
    for row, expected in zip(probs.tolist(), logits.tolist(), strict=True):
        expected = by_hand(expected, temperature, top_k, top_p)
        assert [p > 0 for p in row] == [p > 0 for p in expected]
        assert row == pytest.approx(expected, rel=1e-5)
    assert logits.equal(torch.randn(3, 23, generator=torch.Generator().manual_seed(6)) * 2)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.5, [1, 0, 0, 0]),
        (0.51, [2 / 3, 1 / 3, 0, 0]),
        (0.75, [2 / 3, 1 / 3, 0, 0]),
        (0.8, [4 / 7, 2 / 7, 1 / 7, 0]),
        (0.9, [0.5, 0.25, 0.125, 0.125]),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p, expected):
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    # The two last tokens tie; the earlier one comes first.
    assert probabilities(logits, 1.0, top_p=top_p)[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_samples_are_distributed_as_the_probabilities(tiny):
    ours, _ = tiny("llama")
    n, options = 4000, {"temperature": 1.5, "top_k": 6, "top_p": 0.95}
    with torch.no_grad():
        logits = ours(torch.tensor([PROMPTS[0]]))[:, -1]
    expected = probabilities(logits, **options)[0]
    drawn = generate(ours, [PROMPTS[0]] * n, 1, seed=3, **options)
    counts = torch.bincount(torch.tensor(drawn)[:, 0], minlength=VOCAB)
    assert expected.max() < 0.9  # there is something to draw
    # Five standard deviations of a binomial count; the seed makes the outcome fixed.
    assert ((counts - n * expected).abs() <= 5 * (n * expected * (1 - expected)).sqrt()).all()


ROW = [[1, 2, 3]]
REFUSED = {
    "no rows": ({"prompts": []}, r"shape \(0,\); expected \(B, T\), T at least 1"),
    "an empty row": ({"prompts": [[]]}, r"shape \(1, 0\); expected \(B, T\), T at least 1"),
    "an empty tensor": ({"prompts": torch.ones(2, 0, dtype=torch.long)}, r"shape \(2, 0\)"),
    "no batch": ({"prompts": torch.tensor([1, 2])}, r"shape \(2,\); expected \(B, T\)"),
    "ragged rows": ({"prompts": [[1, 2], [3, 4, 5]]}, r"2 to 3 tokens.*left_pad\(\)"),
    "id too large": ({"prompts": [[1, VOCAB]]}, r"token id 97 is outside the vocabulary 0\.\.96"),
    "negative id": ({"prompts": [[1, -7]]}, r"token id -7 is outside the vocabulary 0\.\.96"),
    "prompt too long": ({"prompts": [[1] * 65]}, r"65 prompt tokens and 4 new.*context of 64"),
    "no room": ({"max_new_tokens": 62}, r"3 prompt tokens and 62 new ones.*context of 64"),
    "no tokens": ({"max_new_tokens": 0}, r"max_new_tokens is 0; it must be 1 or more"),
    "negative tokens": ({"max_new_tokens": -5}, r"max_new_tokens is -5"),
    "NaN temperature": ({"temperature": math.nan}, r"temperature is nan.*finite number >= 0"),
    "infinite temperature": ({"temperature": math.inf}, r"temperature is inf.*finite"),
    "negative temperature": ({"temperature": -0.5}, r"temperature is -0\.5"),
    "top_k of zero": ({"temperature": 1, "top_k": 0}, r"top_k is 0; it must be 1 or more"),
    "negative top_k": ({"temperature": 1, "top_k": -2}, r"top_k is -2"),
    "top_p of zero": ({"temperature": 1, "top_p": 0.0}, r"top_p is 0\.0; it must lie in \(0, 1\]"),
    "top_p above one": ({"temperature": 1, "top_p": 1.5}, r"top_p is 1\.5"),
    "NaN top_p": ({"temperature": 1, "top_p": math.nan}, r"top_p is nan"),
    "positions of another shape": (
        {"positions": torch.zeros(1, 2, dtype=torch.long)},
        r"positions \(1, 2\) do not match input \(1, 3\)",
    ),
    "padding on the right": (
        {"prompts": [[1, 2], [3, 0]], "positions": torch.tensor([[0, 1], [0, -1]])},
        r"row 1 ends in padding \(position -1\); pad on the left",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_with_value_and_limit(tiny, case):
    changes, message = REFUSED[case]
    arguments = {"prompts": ROW, "max_new_tokens": 4, **changes}
    with pytest.raises(ValueError, match=message):
        generate(tiny("llama")[0], **arguments)


def test_a_full_context_is_allowed_and_one_more_is_not(tiny):
    ours, _ = tiny("llama")
    assert len(generate(ours, ROW, CONTEXT - 3)[0]) == CONTEXT - 3
    with pytest.raises(ValueError, match="context of 64"):
        generate(ours, ROW, CONTEXT - 2)


def test_a_cache_counts_towards_the_context(tiny):
    ours, _ = tiny("llama")
    cache = KVCache()
    generate(ours, [[1] * 50], 4, cache=cache)
    with pytest.raises(ValueError, match=r"56 prompt tokens and 9 new ones.*context of 64"):
        generate(ours, ROW, 9, cache=cache)


def test_a_cache_of_another_batch_is_refused(tiny):
    ours, _ = tiny("llama")
    cache = KVCache()
    generate(ours, ROW * 2, 4, cache=cache)
    with pytest.raises(ValueError, match="batch of 1 rows meets a cache of 2 rows"):
        generate(ours, ROW, 4, cache=cache)


@pytest.mark.parametrize("rows", [[], [[]], [[1], []]], ids=str)
def test_left_pad_needs_a_token_in_every_row(rows):
    with pytest.raises(ValueError, match="every prompt needs at least one token"):
        left_pad(rows)


class HalfCharacters:
    """A tokenizer whose even tokens are the first byte of a character and odd ones the second."""

    eos_token_id = VOCAB

    def apply_chat_template(self, messages, **_) -> list[int]:
        return [len(messages), *map(ord, messages[0]["content"])]

    def decode(self, tokens, **_) -> str:
        return bytes(0xA9 if t % 2 else 0xC3 for t in tokens).decode(errors="replace")


def test_an_answer_comes_in_whole_characters_and_is_complete(tiny):
    ours, tokenizer, endings = tiny("llama")[0], HalfCharacters(), set()
    for n in range(1, 13):
        pieces = list(answer(ours, tokenizer, "AB", n))
        [tokens] = generate(ours, [[1, 65, 66]], n)
        assert "".join(pieces) == tokenizer.decode(tokens)
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])
        endings.add("".join(pieces)[-1])
    assert endings == {"\u00e9", "\ufffd"}  # some ended in the middle of a character


TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "Q: What is 2 + 2?\nA:",
    "The three laws of thermodynamics say that",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, COUNT(*) FROM",
    "La capitale de l'Italie est",
    "1, 1, 2, 3, 5, 8, 13,",
    "To make bread you need flour,",
    "Water boils at",
    "# Chapter 1\n\n",
    "The opposite of hot is cold. The opposite of big is",
    "import numpy as np\n\nx = np.",
    "In 1969, humans first",
    "\u00c9t\u00e9, \u4e2d\u6587 \U0001f600",
    '{"name": "Ada", "age":',
    "A",
    "Breaking news: scientists have discovered that the ocean " * 2,
    "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n",
    "My favourite book is the one in which",
]


@pytest.mark.model
@torch.inference_mode()
def test_the_real_model_continues_as_hugging_face_does(real, real_hf):
    model, tokenizer = real
    tokens, positions = left_pad([tokenizer(text)["input_ids"] for text in TEXTS])
    expected = hf_generate(real_hf, tokens, positions, 64)
    mine = generate(model, tokens, 64, positions=positions)
    assert len(mine) >= 20 and len({tuple(row) for row in mine}) == len(TEXTS)
    assert_same_greedy_choices(mine, expected, real_hf, tokens, positions)


@pytest.mark.model
@pytest.mark.parametrize(
    ("question", "expected"),
    [("What is the capital of France?", "Paris"), ("What is 2+2? Answer with a number.", "4")],
)
def test_the_real_model_answers_questions(real, question, expected):
    pieces = list(answer(*real, question, max_new_tokens=24))
    assert expected in "".join(pieces)
    assert "<|im_end|>" not in "".join(pieces)
