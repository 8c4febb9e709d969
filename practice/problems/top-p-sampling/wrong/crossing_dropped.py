"""Crossing token dropped: your result equals the one whose kept tokens stay below p.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass = falling.cumsum(dim=-1)
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass <= p).float())
    filtered = probs * kept
    return filtered / filtered.sum(dim=-1, keepdim=True)
