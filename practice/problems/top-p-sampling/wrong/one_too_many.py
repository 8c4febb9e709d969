"""One too many: your result keeps a token after p is reached exactly; compare with < and not <=.

case: exactly-reached
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass_before <= p).float())
    filtered = probs * kept
    return filtered / filtered.sum(dim=-1, keepdim=True)
