"""Cached decode step: append one token to the cache, then attend to everything it may see."""

import torch


def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One token per row -> out (B, H, 1, D), k and v (B, K, S + 1, D), positions (B, S + 1)."""
    raise NotImplementedError("write decode_step here")
