"""Logarithm as weight: your parts count by the log-sum-exp itself; take its exponential.

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
    shares = lses / lses.sum(dim=0)
    out = (shares[..., None] * known).sum(dim=0)
    return out, top + total.log()
