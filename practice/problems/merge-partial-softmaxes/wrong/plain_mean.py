"""Plain mean: your parts all count the same; a part counts by e to the power of its log-sum-exp.

case: example
kind: value
"""

import torch


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    top = lses.amax(dim=0)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (lses - top).exp()
    total = weights.sum(dim=0)
    known = outs.float().masked_fill((lses == -torch.inf)[..., None], 0)
    out = (weights[..., None] * known).sum(dim=0)
    out = known.mean(dim=0)
    return out, top + total.log()
