"""One size for all: your result keeps as many tokens in each row as in row 0.

case: own-sets
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass_before[:1] < p).float().expand_as(probs))
    filtered = probs * kept
    return filtered / filtered.sum(dim=-1, keepdim=True)
