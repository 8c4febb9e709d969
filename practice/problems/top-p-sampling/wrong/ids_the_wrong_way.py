"""Flags gathered: your result carries the flags the wrong way; scatter is the way back.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = (mass_before < p).float().gather(-1, ids)
    filtered = probs * kept
    return filtered / filtered.sum(dim=-1, keepdim=True)
