"""Last micro-batch only: your gradient lacks the others; backward adds to .grad unless you clear
it.

case: example
kind: value
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
        weight.grad = None
        logits = (x @ weight.T).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten(), reduction="sum") / n_valid
        part.backward()
        loss += part.detach()
    return loss, weight.grad
