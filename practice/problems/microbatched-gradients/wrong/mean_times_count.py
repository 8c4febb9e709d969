"""Mean times count: your micro-batch without a valid token gives 0 / 0; take the sum instead.

case: nothing-valid
kind: nan
"""

import torch
import torch.nn.functional as F


def accumulated_gradient(
    weight: torch.Tensor, microbatches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().clone().requires_grad_()
    n_valid = sum((targets != -100).sum() for _, targets in microbatches)
    loss = torch.zeros(())
    for x, targets in microbatches:
        logits = (x @ weight.T).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten()) * (targets != -100).sum() / n_valid
        part.backward()
        loss += part.detach()
    return loss, weight.grad
