"""Facts hidden in a long text, and how many a model finds again. Support module.

The needle test: codes stand at known depths of a text of known length, each is asked for, and an
answer counts if it is exactly the code. Perplexity hardly sees what a cache forgets; this does.
"""

from __future__ import annotations

import copy
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvpipe.cache import Cache, KVCache
from kvpipe.evaluate import MakeCache
from kvpipe.generate import generate
from kvpipe.texts import text_tokens
from kvpipe.transformer import Transformer

PLACES = ("harbour", "library", "museum", "bakery", "garden", "airport", "theatre", "hospital")
FACT = "The access code of the {place} is {code}."
MARK = "<the user's words>"
FILLER_STARTS = 2000  # tokens of the filler that may be left out at its beginning
ANSWER_TOKENS = 12
QUESTION = "What is the access code of the {place}? Answer with the code only."


@dataclass(frozen=True)
class Retrieval:
    """How many of the facts at one depth of texts of one length were given back."""

    n_text_tokens: int  # length of the text
    depth: float  # where the fact stands: 0 is the beginning of the text, 1 its end
    n_found: int
    n_asked: int

    @property
    def share(self) -> float:
        return self.n_found / self.n_asked

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of `share`."""
        return wilson(self.n_found, self.n_asked)


def wilson(n_found: int, n_asked: int, z: float = 1.96) -> tuple[float, float]:
    """Confidence interval of a share (Wilson 1927); it has a width even at 0 and at all of them.

    z is the normal quantile: 1.96 for 95 %. Raises ValueError unless 0 <= n_found <= n_asked >= 1.
    """
    if not 0 <= n_found <= n_asked or n_asked < 1:
        raise ValueError(f"{n_found} found of {n_asked} asked is not a share")
    p, n = n_found / n_asked, n_asked
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Haystack:
    """A text with facts in it, as token ids, and one question for each."""

    tokens: list[int]  # the chat up to the question
    questions: list[list[int]]  # the rest of the chat, one per depth
    codes: list[str]  # the right answers


def haystack(
    tokenizer, n_tokens: int, depths: Sequence[float], seed: int = 0, kind: str = "manual"
) -> Haystack:
    """A text of `n_tokens` tokens with a four-digit code at each of `depths`.

    Places and codes are drawn with `seed`, which also says where in the filler the text begins.
    Raises ValueError for depths outside 0..1, given twice, or more of them than there are places.
    """
    is_right = len(set(depths)) == len(depths) and 1 <= len(depths) <= len(PLACES)
    if not is_right or not all(0 <= depth <= 1 for depth in depths):
        raise ValueError(
            f"depths {list(depths)}: give 1 to {len(PLACES)} different numbers from 0 to 1"
        )
    draw = random.Random(seed)
    places = draw.sample(PLACES, len(depths))
    codes = [str(draw.randrange(1000, 10_000)) for _ in depths]
    facts = [FACT.format(place=p, code=c) for p, c in zip(places, codes, strict=True)]
    asked = [QUESTION.format(place=place) for place in places]
    opening, closing = _around_the_question(tokenizer)
    facts = [_ids(tokenizer, f"\n\n{fact}\n\n") for fact in facts]
    n_filler = n_tokens - sum(map(len, [opening, *facts]))
    if n_filler < 1:
        raise ValueError(f"{n_tokens} tokens leave no text around {len(facts)} facts; ask for more")
    start = draw.randrange(FILLER_STARTS)
    filler = text_tokens(tokenizer, kind, "test", start + n_filler)[start:].tolist()
    tokens, done = list(opening), 0
    for depth, fact in sorted(zip(depths, facts, strict=True)):
        here = round(depth * n_filler)
        tokens += filler[done:here] + fact
        done = here
    asked = [_ids(tokenizer, f"\n\n{question}") + closing for question in asked]
    return Haystack(tokens + filler[done:], asked, codes)


def retrieval(
    model: Transformer,
    tokenizer,
    n_text_tokens: int,
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    *,
    n_texts: int = 4,
    make_cache: MakeCache = KVCache,
    knows_question: bool = False,
    alone: bool = False,
    seed: int = 0,
    kind: str = "manual",
) -> list[Retrieval]:
    """Ask for the fact at every depth, in `n_texts` texts, greedily decoded: one result per depth.

    The facts of all depths stand in one text and distract from each other; with `alone` each has a
    copy of the text to itself, the usual and easier test. A text goes through the model once, and
    every question continues from a copy of that cache. With `knows_question` each question is in
    the same forward as its text instead, so that a cache which selects by the last queries may
    select for it; a cache that keeps all gives the same answers either way. Errors as in
    `haystack`.
    """
    groups = [[depth] for depth in depths] if alone else [list(depths)]
    found = Counter()
    for i in range(n_texts):
        for group in groups:
            hay = haystack(tokenizer, n_text_tokens, group, seed + i, kind)
            found.update(_found(model, tokenizer, hay, group, make_cache, knows_question))
    return [Retrieval(n_text_tokens, depth, found[depth], n_texts) for depth in depths]


def _found(
    model: Transformer,
    tokenizer,
    hay: Haystack,
    depths: Sequence[float],
    make_cache: MakeCache,
    knows_question: bool,
) -> list[float]:
    """The depths of the facts that were given back."""
    cache = None if knows_question else _read(model, hay.tokens, make_cache())
    right = []
    for depth, question, code in zip(depths, hay.questions, hay.codes, strict=True):
        prompt = hay.tokens + question if cache is None else question
        continued = make_cache() if cache is None else copy.deepcopy(cache)
        [answer] = generate(model, [prompt], ANSWER_TOKENS, cache=continued)
        if is_answer(tokenizer.decode(answer), code):
            right.append(depth)
    return right


def is_answer(text: str, code: str) -> bool:
    """Whether the first number in `text` is exactly the code."""
    number = re.search(r"\d+", text)
    return number is not None and number.group() == code


@torch.inference_mode()
def _read(model: Transformer, tokens: list[int], cache: Cache) -> Cache:
    device = next(model.parameters()).device
    model(torch.tensor([tokens], device=device), cache=cache, n_logits=1)
    return cache


def _ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def _around_the_question(tokenizer) -> tuple[list[int], list[int]]:
    """The chat template as token ids: what comes before a user's words, and what after."""
    chat = [{"role": "user", "content": MARK}]
    chat = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    before, after = chat.split(MARK)
    return _ids(tokenizer, before), _ids(tokenizer, after)
