"""A part counts by its share of the whole sum, e to the power of its log-sum-exp less the total's.

The largest log-sum-exp is taken off first, so no exponential exceeds 1 and the largest is 1. Where
all are -inf, 0 is taken off instead, because -inf less -inf is not a number. A share of 0 does not
silence NaN or infinity, because 0 times either is NaN: outputs of parts that saw nothing are
replaced by 0 before.
"""

import torch


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """outs (N, B, H, T, D), lses (N, B, H, T) -> out (B, H, T, D), lse (B, H, T)."""
    top = lses.amax(dim=0)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (lses - top).exp()
    total = weights.sum(dim=0)
    known = outs.float().masked_fill((lses == -torch.inf)[..., None], 0)
    out = (weights[..., None] * known).sum(dim=0)
    out = out / total.masked_fill(total == 0, 1)[..., None]
    return out, top + total.log()
