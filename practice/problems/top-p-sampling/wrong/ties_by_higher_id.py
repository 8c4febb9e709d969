"""Ties by higher id: your result prefers the later of equal tokens; sort with stable=True.

case: ties
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    ids = probs.argsort(dim=-1, stable=True).flip(-1)
    falling = probs.gather(-1, ids)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass_before < p).float())
    filtered = probs * kept
    return filtered / filtered.sum(dim=-1, keepdim=True)
