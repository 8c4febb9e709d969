"""Nothing filtered: your result equals probs as they came.

case: example
kind: value
"""

import torch


def top_p(probs: torch.Tensor, p: float) -> torch.Tensor:
    return probs.clone()
