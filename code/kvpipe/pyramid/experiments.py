"""Which facts of a long text survive a choice: all methods on the same prefills. Chapter 6.

A prompt goes through the model once, with a cache that also remembers its queries. Every method
then chooses from that record as it would have in the forward, and answers on from there: the
prompt is computed exactly under each of them, so its keys, values and queries are the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvpipe.cache import Cache, KVCache
from kvpipe.generate import generate
from kvpipe.measure import machine
from kvpipe.needles import ANSWER_TOKENS, haystack, is_answer, wilson
from kvpipe.pyramid.budgets import pyramid
from kvpipe.pyramid.cache import PyramidCache
from kvpipe.pyramid.methods import (
    Method,
    PyramidKV,
    Random,
    Scheduled,
    SnapKV,
    StreamingLLM,
)
from kvpipe.transformer import Transformer


class RecordingCache(KVCache):
    """A plain cache that remembers the queries of its last forward, for `replay`."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: dict[int, tuple[Tensor, Tensor]] = {}

    def observe(self, layer: int, q: Tensor, q_positions: Tensor) -> None:
        self.queries[layer] = q, q_positions

    def replay(self, cache: Cache) -> Cache:
        """`cache` as if it had been there in the one forward that this one saw."""
        for layer, (q, q_positions) in self.queries.items():
            if layer in self._buffers:
                n = self._lengths[layer]
                k, v = self._buffers[layer][:, :, :, :n]
                cache.append(layer, k, v, self._positions[:, :n])
            cache.observe(layer, q, q_positions)
        return cache


@dataclass(frozen=True)
class Found:
    """How many codes one method gave back, and out of how much memory."""

    method: str
    n_text_tokens: int
    budget: int  # tokens per layer on average
    knows_question: bool  # the question was in the forward that chose
    n_found: int
    n_asked: int
    interval: tuple[float, float]  # 95 %
    nbytes: int  # of keys and values when decoding began, mean over prompts


@torch.inference_mode()
def needles(
    model: Transformer,
    tokenizer,
    methods: Mapping[str, Method],
    n_text_tokens: int,
    *,
    knows_question: bool,
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    n_texts: int = 4,
    seed: int = 0,
) -> list[Found]:
    """Ask for one code per text and depth under every method, greedily decoded.

    With `knows_question` the question stands at the end of the prompt, where the last queries
    choose for it; else the text is chosen from first and the question asked later. Methods and
    budgets are compared on the same texts; an answer ends with the turn. Errors as in
    `kvpipe.needles.haystack`.
    """
    found, held, n_asked = Counter(), Counter(), len(depths) * n_texts
    for i in range(n_texts):
        for depth in depths:
            hay = haystack(tokenizer, n_text_tokens, [depth], seed + i)
            [question], [code] = hay.questions, hay.codes
            prompt = hay.tokens + question if knows_question else hay.tokens
            record = RecordingCache()
            logits = model(torch.tensor([prompt]), cache=record, n_logits=1)
            first = [int(logits[0, -1].argmax())] if knows_question else None
            for name, method in methods.items():
                cache = record.replay(PyramidCache(model.config, method))
                held[name] += cache.nbytes
                answer = _answer(model, cache, first, question, tokenizer.eos_token_id)
                found[name] += is_answer(tokenizer.decode(answer), code)
    return [
        Found(
            name.partition("@")[0],
            n_text_tokens,
            method.average(n_text_tokens),
            knows_question,
            found[name],
            n_asked,
            wilson(found[name], n_asked),
            round(held[name] / n_asked),
        )
        for name, method in methods.items()
    ]


def _answer(
    model: Transformer, cache: Cache, first: list[int] | None, question: list[int], stop: int
) -> list[int]:
    """The tokens of the answer; its first is known where the question was in the prompt."""
    prompt, n = (question, ANSWER_TOKENS) if first is None else (first, ANSWER_TOKENS - 1)
    [rest] = generate(model, [prompt], n, cache=cache, stop_tokens={stop})
    return (first or []) + rest


def standard_methods(budget: int) -> dict[str, Method]:
    """Methods at one window and one true total, and two that question the comparison.

    H2O is left out: its scores of a prompt cost more than the prompt's own attention. "upside
    down" gives the pyramid's budgets to the layers in reverse; "SnapKV 32" has the window that the
    published comparison gave to the baselines, where the budget holds it.
    """
    methods = {
        "PyramidKV": PyramidKV(budget),
        "SnapKV": SnapKV(budget),
        "StreamingLLM": StreamingLLM(budget),
        "random": Random(budget),
        "upside down": Scheduled(budget, schedule=_upside_down),
    }
    return methods | ({"SnapKV 32": SnapKV(budget, window=32)} if budget > 32 else {})


def _upside_down(n_layers: int, n_tokens: int, budget: int, window: int) -> tuple[int, ...]:
    return pyramid(n_layers, n_tokens, budget, window)[::-1]


def save(results: Iterable[Found], path: str | Path, about: Mapping[str, object]) -> None:
    """Write results with what they depend on: `about`, the machine, the versions."""
    lines = [json.dumps(asdict(result)) for result in results]
    head = json.dumps({**about, "machine": machine()}, indent=1)[:-2]
    text = head + ',\n "results": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    Path(path).write_text(text, encoding="utf-8")


def load(path: str | Path) -> list[Found]:
    """The results of a file written by `save`."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    return [Found(**{**row, "interval": tuple(row["interval"])}) for row in data["results"]]
