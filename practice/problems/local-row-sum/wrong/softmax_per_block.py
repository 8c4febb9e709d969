"""Softmax per block: your claimed weights are normalised in each block; the claim is about D alone.

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
    scores = q @ k.T / D**0.5
    halves = [scores[:, :n_first].softmax(-1), scores[:, n_first:].softmax(-1)]
    for w, shift in ((torch.cat(halves, -1), local), (weights, whole)):
        d_scores = w * (d_weights - shift) / D**0.5
        results += [d_scores @ k, d_scores.T @ q]
    return tuple(results)
