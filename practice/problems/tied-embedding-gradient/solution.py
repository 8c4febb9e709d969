"""Cut the graph at the boundary: what arrives there is a leaf, and its gradient goes back.

Each stage has a graph of its own, as each rank has. `h.detach()` is what crosses the wire; the
receiver makes it a leaf that wants a gradient. That gradient is sent back, and `backward(grad_h)`
carries it on through stage 0.

The two gradients of the copies are added because the loss depends on E in two places, and the
chain rule adds what comes through each. A mean, as in data parallel training, would be for copies
that did the same on different data. The look-up touches only rows of tokens that occur; the head
touches every row. In production the sum is an all-reduce between the first and the last rank.
"""

import torch
import torch.nn.functional as F


def tied_gradients(
    tokens: torch.Tensor,
    targets: torch.Tensor,
    embedding: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens (B, T), embedding (V, C) -> grad_h (B, T, C); of_first, of_last, tied (V, C)."""
    copy_first = embedding.clone().requires_grad_()  # on the first rank
    x = copy_first[tokens]
    h = x + torch.tanh(x @ first.T)

    copy_last = embedding.clone().requires_grad_()  # on the last rank
    arrived = h.detach().requires_grad_()
    y = arrived + torch.tanh(arrived @ second.T)
    logits = y @ copy_last.T
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    grad_h = arrived.grad
    h.backward(grad_h)
    return grad_h, copy_first.grad, copy_last.grad, copy_first.grad + copy_last.grad
