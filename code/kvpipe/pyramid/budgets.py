r"""How many tokens each layer keeps: integers from integers, no tensor. Chapter 6.

Every schedule maps (n_layers, n_tokens, budget, window) to tokens kept per layer, bottom layer
first. `budget` is the average per layer and `window` the last tokens that are always kept, both
counted in the result: what a schedule distributes is the history, $L(C - w)$ tokens. The total is
exactly $L \cdot \min(C, n)$, whatever the shape, so that methods compare at equal memory.

Sources: PyramidKV (arXiv:2406.02069), equation 1; the authors' code and kvpress, whose rules
`authors` and `kvpress` state in our words, deviations from the paper included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

Schedule = Callable[[int, int, int, int], tuple[int, ...]]  # layers, tokens, budget, window


def uniform(n_layers: int, n_tokens: int, budget: int, window: int) -> tuple[int, ...]:
    """The same number of tokens in every layer (SnapKV, H2O, StreamingLLM).

    Raises ValueError for counts below 1 and a budget below the window.
    """
    check(n_layers, n_tokens, budget, window)
    return (min(budget, n_tokens),) * n_layers


def pyramid(
    n_layers: int, n_tokens: int, budget: int, window: int, beta: float = 20.0
) -> tuple[int, ...]:
    r"""Linearly fewer tokens per layer: the paper's equation 1, with an exact total.

    $k^{L-1} = (C - w)/\beta$, $k^0 = 2(C - w) - k^{L-1}$, evenly spaced between, so that the bottom
    history is $2\beta - 1$ times the top one. Where $k^0$ exceeds the prompt's history, it becomes
    that history and the top takes what this frees: the steepest even spacing that fits. Rounding
    gives what is left after flooring to the largest fractions. Errors as in `uniform`; also for
    beta below 1, which would turn the pyramid over.
    """
    check(n_layers, n_tokens, budget, window)
    if not (math.isfinite(beta) and beta >= 1):
        raise ValueError(f"beta is {beta}; it must be 1 (equal layers) or more (20 in the paper)")
    if n_tokens <= budget:
        return (n_tokens,) * n_layers
    average = Fraction(budget - window)
    top = average / Fraction(beta)
    bottom = min(2 * average - top, Fraction(n_tokens - window))
    top = 2 * average - bottom
    return tuple(window + n for n in _rounded(_line(bottom, top, n_layers)))


def exponential(
    n_layers: int, n_tokens: int, budget: int, window: int, decay: float = 0.9
) -> tuple[int, ...]:
    """Each layer's history is `decay` times the one below it (an ablation of the paper, table 4).

    Errors as in `uniform`; also for a decay outside (0, 1].
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}; it must lie in (0, 1]")
    weights = [Fraction(decay) ** layer for layer in range(n_layers)]
    return proportional(n_layers, n_tokens, budget, window, weights)


def proportional(
    n_layers: int, n_tokens: int, budget: int, window: int, weights: Sequence[float | Fraction]
) -> tuple[int, ...]:
    """History in proportion to one weight per layer, such as `calibration.attention_entropy`.

    A layer whose share exceeds the prompt keeps all of it; the rest goes to the others, again in
    proportion. Errors as in `uniform`; also for weights that are not one finite positive number
    per layer.
    """
    check(n_layers, n_tokens, budget, window)
    if len(weights) != n_layers:
        raise ValueError(f"{len(weights)} weights for {n_layers} layers; give one per layer")
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"weights {list(map(float, weights))} must all be finite and above 0")
    if n_tokens <= budget:
        return (n_tokens,) * n_layers
    shares = _filled(
        Fraction(n_layers * (budget - window)),
        [Fraction(weight) for weight in weights],
        Fraction(n_tokens - window),
    )
    return tuple(window + n for n in _rounded(shares))


def authors(
    n_layers: int, n_tokens: int, budget: int, window: int, beta: int = 20
) -> tuple[int, ...]:
    """What the authors' code keeps (KVCache-Factory, PyramidKVCluster), its rounding included.

    All divisions are floored, and a floored step makes the upper layers larger than the schedule:
    the total exceeds L * budget, by 11.7 % for 32 layers, budget 64 and window 8. Prompts shorter
    than twice the history budget get equal layers. Theirs divides by zero at one layer; here it
    keeps the bottom's share. Errors as in `uniform`.
    """
    check(n_layers, n_tokens, budget, window)
    history = budget - window
    if n_tokens < budget:
        return (n_tokens,) * n_layers
    if n_tokens < 2 * history:
        return (budget,) * n_layers
    top = history // beta
    bottom = min(2 * history - top, n_tokens - window)
    top = 2 * history - bottom
    step = (bottom - top) // max(n_layers - 1, 1)
    return tuple(window + bottom - layer * step for layer in range(n_layers))


def kvpress(
    n_layers: int, n_tokens: int, removed: float, window: int = 64, beta: int = 20
) -> tuple[int, ...]:
    """What kvpress 0.5.5's PyramidKVPress keeps when it removes the share `removed`.

    Its window is inside the budget, and where the top layer's share is below the window it falls
    back to equal layers: with its defaults that is whenever fewer than 1,280 tokens per layer are
    left, unless the bottom layer is clamped. Raises ValueError for a share outside [0, 1).
    """
    if not 0 <= removed < 1:
        raise ValueError(f"the removed share is {removed}; it must lie in [0, 1)")
    if removed == 0:
        return (n_tokens,) * n_layers
    # The same sum and difference as there: the rounding of the last bit decides a few layers.
    average = window + n_tokens * (1 - removed) - window
    top = average / beta
    bottom = average * 2 - top
    if bottom >= n_tokens - window:
        bottom = n_tokens - window
        top = average * 2 - bottom
    if not n_tokens >= bottom >= top >= window:
        return (max(1, round(n_tokens * (1 - removed))),) * n_layers
    step = (bottom - top) / (n_layers - 1) if n_layers > 1 else 0.0
    return tuple(round(bottom - layer * step) for layer in range(n_layers))


def check(n_layers: int, n_tokens: int, budget: int, window: int) -> None:
    """Raise ValueError unless all counts are positive and the budget holds the window."""
    for name, n in (("layers", n_layers), ("prompt tokens", n_tokens), ("window tokens", window)):
        if n < 1:
            raise ValueError(f"{n} {name}; there must be 1 or more")
    if budget < window:
        raise ValueError(
            f"a budget of {budget} tokens per layer is less than the window of {window} that is "
            "always kept; raise the budget or shorten the window"
        )


def _line(bottom: Fraction, top: Fraction, n_layers: int) -> list[Fraction]:
    """Evenly spaced from bottom to top; a single layer gets their mean, which is the average."""
    if n_layers == 1:
        return [(bottom + top) / 2]
    step = (bottom - top) / (n_layers - 1)
    return [bottom - layer * step for layer in range(n_layers)]


def _filled(total: Fraction, weights: list[Fraction], most: Fraction) -> list[Fraction]:
    """Shares of `total` in proportion to `weights`, none above `most`."""
    shares, full = [Fraction(0)] * len(weights), set()
    while True:
        free = [i for i in range(len(weights)) if i not in full]
        rest, weight = total - most * len(full), sum(weights[i] for i in free)
        for i in free:
            shares[i] = rest * weights[i] / weight
        above = {i for i in free if shares[i] > most}
        for i in above:
            shares[i] = most
        if not above:
            return shares
        full |= above


def _rounded(shares: Sequence[Fraction]) -> list[int]:
    """Integers with the same total: floors, then one more for the largest fractions.

    Ties go to the lower layer, so that a decreasing sequence stays one.
    """
    floors = [math.floor(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: floors[i] - shares[i])
    for i in order[: round(sum(shares)) - sum(floors)]:
        floors[i] += 1
    return floors
