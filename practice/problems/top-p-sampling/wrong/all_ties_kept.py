"""All ties kept: your result keeps every token as likely as the last one needed.

case: ties
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling = probs.sort(dim=-1, descending=True).values
    mass_before = falling.cumsum(dim=-1) - falling
    least = falling.masked_fill(mass_before >= p, 2.0).min(dim=-1, keepdim=True).values
    filtered = probs * (probs >= least)
    return filtered / filtered.sum(dim=-1, keepdim=True)
