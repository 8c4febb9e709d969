"""Layer of stage 0 skipped: your of_first has grad_h itself added to the rows, without stage 0's
layer.

case: layer-of-stage-0
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

    copy_last = embedding.clone().requires_grad_()  # on the last rank
    arrived = h.detach().requires_grad_()
    y = arrived + torch.tanh(arrived @ second.T)
    logits = y @ copy_last.T
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    grad_h = arrived.grad
    of_first = torch.zeros_like(embedding)
    of_first.index_add_(0, tokens.flatten(), grad_h.flatten(0, 1))
    return grad_h, of_first, copy_last.grad, of_first + copy_last.grad
