"""Merging partial softmaxes: attention over all keys from attention over each part of them."""

import torch


def merge(outs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """outs (N, B, H, T, D), lses (N, B, H, T) -> out (B, H, T, D), lse (B, H, T)."""
    raise NotImplementedError("write merge here")
