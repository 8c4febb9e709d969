"""Largest log-sum-exp: your `lse` is that of the heaviest part; the sum of all is larger.

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
    out = out / total.masked_fill(total == 0, 1)[..., None]
    return out, lses.amax(dim=0)
