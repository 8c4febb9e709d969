"""Sorted order: your result is in falling order; entry i must belong to token i.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, _ = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    filtered = falling * (mass_before < p)
    return filtered / filtered.sum(dim=-1, keepdim=True)
