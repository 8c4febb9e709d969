"""Threshold from p: your result equals the one that keeps tokens at p times the largest or above.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    filtered = probs * (probs >= p * probs.max(dim=-1, keepdim=True).values)
    return filtered / filtered.sum(dim=-1, keepdim=True)
