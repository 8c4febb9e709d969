"""In place: your function changed the caller's probabilities; filter a copy.

case: example
kind: mutated
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass_before < p).float())
    probs *= kept
    return probs / probs.sum(dim=-1, keepdim=True)
