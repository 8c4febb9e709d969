"""Not sorted: your result equals the one that adds up tokens in the order of their ids.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    mass_before = probs.cumsum(dim=-1) - probs
    filtered = probs * (mass_before < p)
    return filtered / filtered.sum(dim=-1, keepdim=True)
