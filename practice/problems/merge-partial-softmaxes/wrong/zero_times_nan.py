"""Zero times NaN: a weight of 0 does not silence what a part holds where it saw nothing;
replace it.

case: garbage
kind: nan
"""

import torch


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    top = lses.amax(dim=0)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (lses - top).exp()
    total = weights.sum(dim=0)
    known = outs.float()
    out = (weights[..., None] * known).sum(dim=0)
    out = out / total.masked_fill(total == 0, 1)[..., None]
    return out, top + total.log()
