"""Gradient not cloned: your of_last was read from .grad before the second backward, which then
added to the same tensor; clone it.

case: example
kind: value
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
    leaf = embedding.clone().requires_grad_()  # for both stages
    x = leaf[tokens]
    h = x + torch.tanh(x @ first.T)

    arrived = h.detach().requires_grad_()
    y = arrived + torch.tanh(arrived @ second.T)
    logits = y @ leaf.T
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    grad_h = arrived.grad
    of_last = leaf.grad
    h.backward(grad_h)
    return grad_h, leaf.grad - of_last, of_last, leaf.grad
