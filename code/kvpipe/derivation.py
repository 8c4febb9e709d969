"""What joins a chapter's derivation to the module: show the source, and assert that both agree.

A notebook writes a short `naive_*` version from the formula. `show` prints the module's version as
it is installed, so that the page cannot lag behind it; `assert_same` compares values and gradients.
Support module.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """The source of one or more functions or classes, as a notebook displays it."""

    titles: tuple[str, ...]
    texts: tuple[str, ...]

    def _repr_markdown_(self) -> str:
        return "\n\n".join(
            f"`{title}`\n\n````python\n{text}````"
            for title, text in zip(self.titles, self.texts, strict=True)
        )

    def __repr__(self) -> str:
        return f"[source] {', '.join(self.titles)}"


def show(*things: Callable | type) -> Source:
    """Display the source of functions, methods or classes, with the module that holds them."""
    if not things:
        raise ValueError("show() needs at least one function or class")
    return Source(
        titles=tuple(f"{thing.__module__}.{thing.__qualname__}" for thing in things),
        texts=tuple(textwrap.dedent(inspect.getsource(thing)) for thing in things),
    )


def assert_same(
    naive: Callable[..., Tensor],
    module: Callable[..., Tensor],
    *inputs: Tensor,
    parameters: Sequence[Tensor] = (),
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> None:
    """Raise AssertionError unless both give the same values and the same gradients.

    The gradient is taken for every input and every tensor of `parameters`, of the sum of the
    output weighted by fixed random numbers, so that no part of it can cancel.
    """
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    expected, found = naive(*inputs), module(*inputs)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    generator = torch.Generator(expected.device).manual_seed(0)
    weights = torch.randn(expected.shape, generator=generator, device=expected.device)
    leaves = (*inputs, *parameters)
    for which, pair in enumerate(
        zip(_gradients(expected, leaves, weights), _gradients(found, leaves, weights), strict=True)
    ):
        name = f"input {which}" if which < len(inputs) else f"parameter {which - len(inputs)}"
        torch.testing.assert_close(
            pair[1], pair[0], rtol=rtol, atol=atol,
            msg=lambda text, name=name: f"the gradients of {name} differ: {text}",
        )  # fmt: skip


def _gradients(out: Tensor, leaves: Sequence[Tensor], weights: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, leaves, weights.to(out.dtype))
