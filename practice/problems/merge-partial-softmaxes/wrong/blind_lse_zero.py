"""Blind rows without -inf: your `lse` of a query that sees no key is 0, as if it had seen a score
of 0.

case: sees-nothing
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
    return out, (top + total.log()).masked_fill(total == 0, 0)
