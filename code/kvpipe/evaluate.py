r"""What a change to a model or its cache costs, on text. Support module.

Perplexity $\exp(-\frac{1}{n}\sum \log p(t_i \mid t_{<i}))$, agreement of the likeliest next
token, bytes of the cache, and seconds per decoded token. Each takes any model of chapter 1 with any
cache: `make_cache` builds a fresh, empty one. What a model finds in a long text is measured in
`kvpipe.needles`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kvpipe.cache import Cache, KVCache
from kvpipe.measure import interleaved_s
from kvpipe.transformer import Transformer

MakeCache = Callable[[], Cache]


def windows(
    n_tokens: int, window: int, stride: int | None = None, n_prefix: int = 0
) -> list[tuple[int, int]]:
    """Where each window of a text starts, and how many of its targets (the last ones) count.

    A window at `start` reads tokens start .. start + window - 1 and predicts each one's successor,
    so its targets are start + 1 .. start + window. Windows are `stride` apart, and a target counts
    only in the first window that has it: each one once. With a prefix, the window's first
    `n_prefix` tokens are only read; the last of them predicts the first target that counts. By
    default windows are as far apart as leaves no gap. The last one is moved back so that it is
    full. Raises ValueError for sizes that leave gaps or nothing to predict.
    """
    if n_tokens < 2:
        raise ValueError(f"a text of {n_tokens} tokens has nothing to predict; it needs 2 or more")
    window = min(window, n_tokens - 1)
    unscored = max(n_prefix - 1, 0)
    if not 0 <= n_prefix <= window or window < 1:
        raise ValueError(f"a prefix of {n_prefix} tokens does not fit a window of {window}")
    stride = window - unscored if stride is None else stride
    if not 1 <= stride <= window - unscored:
        raise ValueError(
            f"stride {stride} with windows of {window} and a prefix of {n_prefix} tokens; it must "
            f"lie in 1..{window - unscored}, or targets are left out"
        )
    cut, counted = [], unscored  # the last target that has been dealt with
    for start in range(0, n_tokens, stride):
        start = min(start, n_tokens - 1 - window)
        end = start + window
        cut.append((start, end - counted))
        counted = end
        if end == n_tokens - 1:
            return cut
    raise AssertionError("windows end at the last token")


@torch.inference_mode()
def token_losses(
    model: Transformer,
    tokens: Tensor,
    window: int = 512,
    stride: int | None = None,
    *,
    n_prefix: int = 0,
    make_cache: MakeCache | None = None,
    rows: int = 2,
) -> Tensor:
    r"""$-\log p$ of every target in nats, float32 (n,), in the order of the text.

    `tokens` is (N,); n is N - 1, or N - n_prefix with a prefix. The prefix goes through the model
    in a forward of its own, so that a cache which selects has selected before the rest is scored.
    `rows` windows run at once. Windows and errors as in `windows`.
    """
    losses = []
    for logits, targets in _predictions(model, tokens, window, stride, n_prefix, make_cache, rows):
        losses.append(F.cross_entropy(logits.float(), targets, reduction="none"))
    return torch.cat(losses).cpu()


def perplexity(model: Transformer, tokens: Tensor, window: int = 512, **options) -> float:
    """The exponential of the mean of `token_losses`, with its options."""
    return math.exp(token_losses(model, tokens, window, **options).double().mean().item())


@torch.inference_mode()
def agreement(
    model: Transformer,
    reference: Transformer,
    tokens: Tensor,
    window: int = 512,
    stride: int | None = None,
    *,
    n_prefix: int = 0,
    make_cache: MakeCache | None = None,
    rows: int = 2,
) -> float:
    """The share of targets for which both models name the same likeliest token.

    Only `model` uses `make_cache`. Windows and errors as in `windows`.
    """
    options = tokens, window, stride, n_prefix
    pairs = zip(
        _predictions(model, *options, make_cache, rows),
        _predictions(reference, *options, None, rows),
        strict=True,
    )
    same = [ours.argmax(-1) == theirs.argmax(-1) for (ours, _), (theirs, _) in pairs]
    return torch.cat(same).double().mean().item()


def _predictions(
    model: Transformer,
    tokens: Tensor,
    window: int,
    stride: int | None,
    n_prefix: int,
    make_cache: MakeCache | None,
    rows: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (n, V) and targets (n,) of the targets that count, some windows at a time."""
    tokens = tokens.to(next(model.parameters()).device)
    cut = windows(len(tokens), window, stride, n_prefix)
    window = min(window, len(tokens) - 1)
    for i in range(0, len(cut), rows):
        part = cut[i : i + rows]
        inputs = torch.stack([tokens[start : start + window] for start, _ in part])
        most = max(n for _, n in part)
        logits = _logits(model, inputs, n_prefix, make_cache, most)
        for row, (start, n) in zip(logits, part, strict=True):
            yield row[most - n :], tokens[start + window + 1 - n : start + window + 1]


def _logits(
    model: Transformer, inputs: Tensor, n_prefix: int, make_cache: MakeCache | None, n: int
) -> Tensor:
    """Logits of the last n tokens of every window: (rows, n, V)."""
    cache = KVCache if make_cache is None and n_prefix else make_cache
    if not n_prefix:
        return model(inputs, cache=cache and cache(), n_logits=n)
    cache, rest = cache(), inputs[:, n_prefix:]
    first = model(inputs[:, :n_prefix], cache=cache, n_logits=1)
    after = [model(rest, cache=cache)] if rest.shape[1] else []
    return torch.cat([first, *after], dim=1)[:, -n:]


@torch.inference_mode()
def cache_bytes(
    model: Transformer, n_tokens: int, make_cache: MakeCache = KVCache, rows: int = 1
) -> int:
    """Bytes a cache holds after `n_tokens` tokens of `rows` rows, counted, not computed."""
    return fill(model, make_cache(), n_tokens, rows).nbytes


@torch.inference_mode()
def fill(
    model: Transformer, cache: Cache, n_tokens: int, rows: int = 1, chunk: int = 1024
) -> Cache:
    """`cache` after `n_tokens` random tokens: what decoding costs depends on sizes alone.

    Keys, values and queries are drawn, not computed, `chunk` tokens at a time, so that a long
    context takes no long forward. Raises ValueError beyond the model's context.
    """
    c, like = model.config, next(model.parameters())
    if not 1 <= n_tokens <= c.context:
        raise ValueError(f"{n_tokens} tokens do not fit a context of 1..{c.context}")
    for start in range(0, n_tokens, chunk):
        n = min(chunk, n_tokens - start)
        positions = torch.arange(start, start + n, device=like.device).expand(rows, n)
        for layer, source in enumerate(c.kv_source):
            if source == layer:
                k, v = torch.randn(2, rows, c.n_kv_heads, n, c.head_size).to(like)
                cache.append(layer, k, v, positions)
            q = torch.randn(rows, c.n_heads, n, c.head_size).to(like)
            cache.observe(layer, q, positions)
    return cache


@torch.inference_mode()
def decode_s(
    subjects: Mapping[str, tuple[Transformer, MakeCache]],
    n_context: int,
    rows: int = 1,
    repeats: int = 9,
) -> dict[str, list[float]]:
    """Seconds of single decode steps after `n_context` tokens, subjects taking turns.

    A subject is a model with its kind of cache. Each step is one token of `rows` rows; its token
    stays in the cache, so the context grows by `repeats` + 2.
    """
    steps = {}
    for name, (model, make_cache) in subjects.items():
        cache = fill(model, make_cache(), n_context, rows)
        token = torch.zeros(rows, 1, dtype=torch.long, device=next(model.parameters()).device)
        steps[name] = lambda model=model, cache=cache, token=token: model(token, cache=cache)
    return interleaved_s(steps, repeats, warmup=2)


def speed_ratio(seconds: Mapping[str, list[float]], name: str, reference: str) -> float:
    """How many times faster than `reference` the subject `name` is: the ratio of medians."""
    return statistics.median(seconds[reference]) / statistics.median(seconds[name])
