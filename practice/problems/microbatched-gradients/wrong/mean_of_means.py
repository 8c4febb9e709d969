"""Mean of means: your result gives each micro-batch the same weight, however many tokens it has.

case: example
kind: value
"""

import torch
import torch.nn.functional as F


def accumulated_gradient(
    weight: torch.Tensor, microbatches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().clone().requires_grad_()
    loss = torch.zeros(())
    for x, targets in microbatches:
        logits = (x @ weight.T).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten()) / len(microbatches)
        part.backward()
        loss += part.detach()
    return loss, weight.grad
