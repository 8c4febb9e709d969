"""One angle for each row, token and pair: (B, T, 1) positions times (D/2,) frequencies.

A dimension of size 1 lets all heads share the angles. `chunk` cuts the vector into its first and
second half, which is the pairing of the Llama checkpoints; neighbours, x[0::2] and x[1::2], would
be the pairing of the original paper. Both rotate equally well, but weights trained for one give
nonsense with the other. Nothing here looks at the index of a token, so padding, gaps and any
order of tokens need no special case.
"""

import torch


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """x (B, H, T, D), positions (B, T) -> same shape and dtype as x."""
    D = x.shape[-1]
    frequencies = theta ** -(torch.arange(0, D, 2).float() / D)
    angles = (positions[..., None] * frequencies)[:, None]  # (B, 1, T, D/2)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
