"""Rows as weights: your result weighs micro-batches by their rows; tokens count, not rows.

case: example
kind: value
"""

import torch
import torch.nn.functional as F


def accumulated_gradient(
    weight: torch.Tensor, microbatches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().clone().requires_grad_()
    n_rows = sum(len(x) for x, _ in microbatches)
    loss = torch.zeros(())
    for x, targets in microbatches:
        logits = (x @ weight.T).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten()) * len(x) / n_rows
        part.backward()
        loss += part.detach()
    return loss, weight.grad
