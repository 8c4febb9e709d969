"""p as a threshold: your result keeps only tokens whose own probability is p; it is their sum.

case: example
kind: nan
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    filtered = probs * (probs >= p)
    return filtered / filtered.sum(dim=-1, keepdim=True)
