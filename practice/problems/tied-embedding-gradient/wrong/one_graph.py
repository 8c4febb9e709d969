"""One matrix on both stages: your copies all have the tied gradient; each has its own part.

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
    copy_first = embedding.clone().requires_grad_()  # on the first rank
    x = copy_first[tokens]
    h = x + torch.tanh(x @ first.T)

    copy_last = copy_first
    arrived = h.detach().requires_grad_()
    y = arrived + torch.tanh(arrived @ second.T)
    logits = y @ copy_last.T
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    grad_h = arrived.grad
    h.backward(grad_h)
    return grad_h, copy_first.grad, copy_last.grad, copy_last.grad
