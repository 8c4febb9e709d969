"""Two parts: you merge the first two and forget the rest.

case: one-part
kind: exception
"""

import torch


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.logaddexp(lses[0], lses[1])
    shares = [(lse - total.masked_fill(total == -torch.inf, 0)).exp()[..., None] for lse in lses]
    known = outs.float().masked_fill((lses == -torch.inf)[..., None], 0)
    return shares[0] * known[0] + shares[1] * known[1], total
