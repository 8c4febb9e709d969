"""From prompts to new tokens: one forward for the prompt, one for each token. Chapter 1."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from kvpipe.attention import attention
from kvpipe.cache import Cache, KVCache
from kvpipe.transformer import Attend, Transformer

Rows = Tensor | Sequence[Sequence[int]]


def left_pad(
    rows: Sequence[Sequence[int]], pad_token: int = 0, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Rows of different length as (tokens, positions), both (B, T), padded on the left.

    Padding gets position -1, which no query sees, so the value of `pad_token` does not matter.
    """
    if not rows or not all(len(row) for row in rows):
        raise ValueError("every prompt needs at least one token")
    T = max(len(row) for row in rows)
    tokens = [[pad_token] * (T - len(row)) + list(row) for row in rows]
    positions = [[-1] * (T - len(row)) + list(range(len(row))) for row in rows]
    return torch.tensor(tokens, device=device), torch.tensor(positions, device=device)


def probabilities(
    logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """The distribution that sampling draws from: (B, V) logits to (B, V) probabilities.

    Keeps the `top_k` likeliest tokens, then the smallest set of the likeliest whose probability
    reaches `top_p` (nucleus sampling, arXiv:1904.09751), and renormalises.
    """
    logits = logits.float()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature  # never overflows upwards
    if top_k is not None and top_k < logits.shape[-1]:
        threshold = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    probs = logits.softmax(dim=-1)
    if top_p is not None and top_p < 1:
        sorted_probs, order = probs.sort(dim=-1, descending=True, stable=True)
        mass_before = sorted_probs.cumsum(dim=-1) - sorted_probs
        kept = torch.empty_like(probs).scatter(-1, order, (mass_before < top_p).to(probs.dtype))
        probs = probs * kept
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def pick_tokens(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """One token per row of logits, (B, V) -> (B, 1): the likeliest at temperature 0, else drawn."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    probs = probabilities(logits, temperature, top_k, top_p)
    return torch.multinomial(probs, num_samples=1, generator=generator)


def check_options(
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Raise ValueError for what `stream` cannot do, naming the option and its range."""
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be 1 or more")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature is {temperature}; it must be a finite number >= 0")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be 1 or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must lie in (0, 1]")


@torch.inference_mode()
def stream(
    model: Transformer,
    prompts: Rows,
    max_new_tokens: int = 64,
    *,
    positions: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_tokens: Collection[int] = (),
    cache: Cache | None = None,
    attend: Attend = attention,
) -> Iterator[list[int | None]]:
    """Yield one token per row and step; None for a row that has already stopped.

    `prompts` is (B, T) token ids, or rows of equal length; rows of different length come from
    `left_pad`, with its `positions`. Temperature 0 takes the likeliest token; otherwise tokens are
    drawn with `seed`. Ends after `max_new_tokens`, or when every row has produced a stop token.
    A `cache` that has seen tokens continues that conversation; then `prompts` are the tokens it
    has not seen, the first of which is the last one generated (it was never fed back).

    Raises ValueError for empty or ragged prompts, options out of range, ids outside the
    vocabulary, and prompts that leave no room for the new tokens in the model's context.
    """
    check_options(max_new_tokens, temperature, top_k, top_p)
    device = next(model.parameters()).device
    tokens = _as_tensor(prompts, device)
    B, T = tokens.shape
    start = 0 if cache is None else cache.seen
    _check_room(start + T, max_new_tokens, model.config.context)
    if positions is None:
        positions = torch.arange(start, start + T, device=device).expand(B, T)
    _check_ends(positions)
    cache = KVCache(capacity=T + max_new_tokens) if cache is None else cache
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    is_done = [False] * B
    for _ in range(max_new_tokens):
        logits = model(tokens, positions, cache, attend, n_logits=1)[:, -1]
        tokens = pick_tokens(logits, temperature, top_k, top_p, generator)
        positions = positions[:, -1:] + 1
        step = [None if done else t for done, t in zip(is_done, tokens[:, 0].tolist(), strict=True)]
        is_done = [t is None or t in stop_tokens for t in step]
        yield step
        if all(is_done):
            return


def generate(
    model: Transformer, prompts: Rows, max_new_tokens: int = 64, **options
) -> list[list[int]]:
    """The new tokens of every row, a stop token included. Options and errors as in `stream`."""
    steps = list(stream(model, prompts, max_new_tokens, **options))
    return [[t for t in row if t is not None] for row in zip(*steps, strict=True)]


def answer(
    model: Transformer, tokenizer, question: str, max_new_tokens: int = 128, **options
) -> Iterator[str]:
    """Pieces of the answer to one question, put into the tokenizer's chat template.

    `tokenizer` is a `transformers` tokenizer. Options and errors as in `stream`.
    """
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    options.setdefault("stop_tokens", {tokenizer.eos_token_id})
    tokens, text, shown = [], "", ""
    for [token] in stream(model, [prompt], max_new_tokens, **options):
        tokens.append(token)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # the middle of a character
            yield text[len(shown) :]
            shown = text
    yield text[len(shown) :]  # a character that was cut off, as the tokenizer shows it


def _as_tensor(prompts: Rows, device: torch.device) -> Tensor:
    if not isinstance(prompts, Tensor):
        lengths = sorted({len(row) for row in prompts})
        if len(lengths) > 1:
            raise ValueError(
                f"rows have {lengths[0]} to {lengths[-1]} tokens; pad them with left_pad() and "
                "pass its positions, so that padding stays invisible"
            )
        prompts = torch.tensor(prompts, dtype=torch.long)
    if prompts.ndim != 2 or prompts.numel() == 0:
        raise ValueError(f"prompts of shape {tuple(prompts.shape)}; expected (B, T), T at least 1")
    return prompts.to(device)


def _check_room(n_prompt: int, n_new: int, context: int) -> None:
    if n_prompt + n_new > context:
        raise ValueError(
            f"{n_prompt} prompt tokens and {n_new} new ones exceed the model's context of "
            f"{context}; shorten the prompt or lower max_new_tokens"
        )


def _check_ends(positions: Tensor) -> None:
    """The last column is where the next token follows, so it must not be padding."""
    if row := (positions[:, -1] < 0).nonzero().flatten().tolist():
        raise ValueError(
            f"row {row[0]} ends in padding (position {int(positions[row[0], -1])}); pad on the "
            "left, as left_pad() does"
        )
