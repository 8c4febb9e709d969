"""Flags not carried back: your result filters the vocabulary with flags in sorted order.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, _ = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    filtered = probs * (mass_before < p)
    return filtered / filtered.sum(dim=-1, keepdim=True)
