"""Rows mixed: your result divides by one sum for the whole batch; each row adds up to 1.

case: own-sets
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass_before < p).float())
    filtered = probs * kept
    return filtered / filtered.sum()
