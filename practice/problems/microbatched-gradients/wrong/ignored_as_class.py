"""Target -100 as class 0: your result trains on tokens that have no target.

case: ignored-targets
kind: value
"""

import torch
import torch.nn.functional as F


def accumulated_gradient(
    weight: torch.Tensor, microbatches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    weight = weight.detach().clone().requires_grad_()
    n_valid = sum(targets.numel() for _, targets in microbatches)
    loss = torch.zeros(())
    for x, targets in microbatches:
        logits = (x @ weight.T).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten().clamp(min=0), reduction="sum") / n_valid
        part.backward()
        loss += part.detach()
    return loss, weight.grad
