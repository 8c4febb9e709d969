"""Each micro-batch adds the *sum* over its valid tokens, divided by the count of the whole step.

Sums add up whatever the sizes are; means do not. Dividing each micro-batch's mean by M gives the
same only if all have equally many valid tokens. A micro-batch without one adds zero, where a mean
would be 0 / 0. The count N needs targets only, so it is known before the first backward starts: in
1F1B that is long before the last micro-batch has gone forward.

`backward` adds to `.grad`, so one call per micro-batch accumulates, and the graph of each is freed
before the next one is built.
"""

import torch
import torch.nn.functional as F


def accumulated_gradient(
    weight: torch.Tensor, microbatches: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight (V, C), pairs of x (B, T, C) and targets (B, T) -> loss (), gradient (V, C)."""
    weight = weight.detach().clone().requires_grad_()
    n_valid = sum((targets != -100).sum() for _, targets in microbatches)
    loss = torch.zeros(())
    for x, targets in microbatches:
        logits = (x @ weight.T).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten(), reduction="sum") / n_valid
        part.backward()
        loss += part.detach()
    return loss, weight.grad
