"""Top-p sampling: keep the smallest set of likely tokens that reaches p."""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    """probs (B, V), rows adding up to 1 -> the distribution to draw from, (B, V)."""
    raise NotImplementedError("write top_p here")
