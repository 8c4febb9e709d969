"""Truth first: your tuple has the true gradients first; the claimed ones come first.

case: example
kind: value
"""

import torch


def claim_and_truth(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    n_first: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    D = q.shape[-1]
    weights = (q @ k.T / D**0.5).softmax(dim=-1)
    d_weights = d_out @ v.T
    rows = weights * d_weights
    whole = rows.sum(dim=-1, keepdim=True)
    local = torch.empty_like(rows)
    local[:, :n_first] = rows[:, :n_first].sum(dim=-1, keepdim=True)
    local[:, n_first:] = rows[:, n_first:].sum(dim=-1, keepdim=True)
    results = []
    for shift in (whole, local):
        d_scores = weights * (d_weights - shift) / D**0.5
        results += [d_scores @ k, d_scores.T @ q]
    return tuple(results)
