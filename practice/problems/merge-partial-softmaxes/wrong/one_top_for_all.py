"""One maximum for all: you take the largest of the whole tensor off; the other rows' sums become 0.

case: far-apart
kind: value
"""

import torch


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    top = lses.max().expand(lses.shape[1:])
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (lses - top).exp()
    total = weights.sum(dim=0)
    known = outs.float().masked_fill((lses == -torch.inf)[..., None], 0)
    out = (weights[..., None] * known).sum(dim=0)
    out = out / total.masked_fill(total == 0, 1)[..., None]
    return out, top + total.log()
