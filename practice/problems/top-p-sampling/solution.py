"""A token is kept if the mass *before* it, in falling order, has not reached p yet.

That single comparison settles both edges: the token with which the sum reaches p is kept, and the
first token always is, since nothing comes before it. `stable=True` leaves equal tokens in the order
of their ids. The flags are found in sorted order; `scatter` carries them back to where the tokens
stand in the vocabulary.
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    """probs (B, V), rows adding up to 1 -> the distribution to draw from, (B, V)."""
    falling, ids = probs.sort(dim=-1, descending=True, stable=True)
    mass_before = falling.cumsum(dim=-1) - falling
    kept = torch.zeros_like(probs).scatter(-1, ids, (mass_before < p).float())
    filtered = probs * kept
    return filtered / filtered.sum(dim=-1, keepdim=True)
