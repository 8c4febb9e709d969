r"""The backward of a matrix product in two halves, the second of which can wait (chapter 2).

For $y = xW^\top + b$ a rank owes the rank before it $dx = dy\,W$. Nobody waits for
$dW = dy^\top x$ before the optimizer step, so zero-bubble schedules (arXiv 2401.10241) compute it
where the rank would idle. Inside `deferring` every `torch.nn.functional.linear` gets a backward
that returns dx at once and keeps (dy, x) for later. Norms and the embedding are not split: their
weight gradients cost about as much as adding two vectors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WeightGradients:
    """Weight gradients put off: what each product needs is kept until `compute`."""

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Tensor, Tensor | None, Tensor]] = []

    @property
    def nbytes(self) -> int:
        """Bytes kept for later: an input shared by several products counts once."""
        kept = {t.data_ptr(): t.nbytes for dy, _, _, x in self._pending for t in (dy, x)}
        return sum(kept.values())

    def defer(self, dy: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor) -> None:
        self._pending.append((dy, weight, bias, x))

    @torch.no_grad()
    def compute(self) -> None:
        """Add every gradient to its parameter's `grad`, and let go of what was kept."""
        pending, self._pending = self._pending, []
        for dy, weight, bias, x in pending:
            dy, x = dy.flatten(0, -2), x.flatten(0, -2)
            if weight.grad is None:
                # By columns if the weight is, as autograd would have made it.
                by_columns = weight.mT.is_contiguous()
                rows = weight.new_empty(weight.mT.shape if by_columns else weight.shape)
                weight.grad = torch.mm(dy.T, x, out=rows.mT if by_columns else rows)
            else:
                torch.addmm(weight.grad, dy.T, x, out=weight.grad)
            if bias is not None and bias.requires_grad:
                total = dy.sum(dim=0)
                bias.grad = total if bias.grad is None else bias.grad + total


class deferring(TorchFunctionMode):
    """While this is entered, products with trainable weights put their weight gradients off.

    It acts on the functions torch calls, not on modules, so it works for any model and leaves
    nothing behind. Gradients computed this way do not run hooks registered on the parameter.
    """

    def __init__(self, later: WeightGradients) -> None:
        super().__init__()
        self.later = later

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.linear:
            return _linear(self.later, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(
    later: WeightGradients, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    if weight.requires_grad and weight.is_leaf and torch.is_grad_enabled():
        return _SplitLinear.apply(input, weight, bias, later)
    return F.linear(input, weight, bias)


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, later: WeightGradients):
        ctx.save_for_backward(x, weight)
        ctx.later, ctx.parameters = later, (weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        ctx.later.defer(dy, *ctx.parameters, x.detach())
        return (dy @ weight if ctx.needs_input_grad[0] else None), None, None, None
