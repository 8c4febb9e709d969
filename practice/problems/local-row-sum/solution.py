"""Everything but the row sum is the same: compute it once and subtract two different sums.

The claim is right only where one block holds all the weight of a row. It is easily missed: d_v
needs no row sum and stays exact, and in tests with one block both versions agree. What does run
block by block is everything else; D = rowsum(dO * O) is computed once, from the output of the whole
attention.
"""

import torch


def claim_and_truth(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    n_first: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, d_out (T, D), k, v (S, D) -> claimed d_q (T, D), d_k (S, D), true d_q, d_k."""
    D = q.shape[-1]
    weights = (q @ k.T / D**0.5).softmax(dim=-1)
    d_weights = d_out @ v.T
    rows = weights * d_weights
    whole = rows.sum(dim=-1, keepdim=True)
    local = torch.empty_like(rows)
    local[:, :n_first] = rows[:, :n_first].sum(dim=-1, keepdim=True)
    local[:, n_first:] = rows[:, n_first:].sum(dim=-1, keepdim=True)
    results = []
    for shift in (local, whole):
        d_scores = weights * (d_weights - shift) / D**0.5
        results += [d_scores @ k, d_scores.T @ q]
    return tuple(results)
