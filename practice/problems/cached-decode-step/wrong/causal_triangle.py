"""is_causal: your result equals the one where the only query, as row 0, sees only key 0.

case: example
kind: value
"""

import torch
import torch.nn.functional as F


def decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    k_all, v_all = torch.cat([k_cache, k], dim=2), torch.cat([v_cache, v], dim=2)
    out = F.scaled_dot_product_attention(q, k_all, v_all, is_causal=True, enable_gqa=True)
    return out, k_all, v_all, torch.cat([cache_positions, positions], dim=1)
