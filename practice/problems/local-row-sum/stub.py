"""A wrong claim: gradients with a row sum per block, as a report says, and the true ones."""

import torch


def claim_and_truth(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    n_first: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, d_out (T, D), k, v (S, D) -> claimed d_q (T, D), d_k (S, D), true d_q, d_k."""
    raise NotImplementedError("write claim_and_truth here")
