import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.ops.gradients import refuse_second_derivative


def softplus(values: Tensor) -> Tensor:
    """Compute log(1 + exp(x)) of each value, in float64 too: above 20 PyTorch's returns x, which is up to 2e-9 less.

    >>> softplus(torch.tensor(25.0, dtype=torch.float64)).item() > 25
    True
    """
    return F.softplus(values, threshold=40 if values.dtype == torch.float64 else 20)


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax of the entries in ``mask`` over the last dimension; all other entries are 0.

    Large logits don't overflow, because the largest entry is subtracted first.

    >>> masked_softmax(torch.tensor([1.0, 5.0, 1.0]), torch.tensor([True, False, True])).tolist()
    [0.5, 0.0, 0.5]
    """
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~mask, lowest).softmax(dim=-1) * mask


def masked_logsumexp(logits: Tensor, mask: Tensor) -> Tensor:
    """Compute the log of the sum of exp of the entries in ``mask`` over the last dimension.

    A row without entries gives -inf with a zero gradient. Terms below 1e-28 of the largest one (in float32) count as 0.
    They don't change the sum, and their gradients could become subnormal numbers, which are about a hundred times
    slower to compute with. It can be differentiated once, not twice.

    >>> masked_logsumexp(torch.tensor([[0.0, 5.0], [0.0, 5.0]]), torch.tensor([[True, False], [False, False]])).tolist()
    [0.0, -inf]
    """
    result: Tensor = _MaskedLogSumExp.apply(logits, mask)
    return result


class _MaskedLogSumExp(torch.autograd.Function):
    """Computes `masked_logsumexp` and stores only the softmax for the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, mask: Tensor) -> Tensor:
        chosen = logits.masked_fill(~mask, -torch.inf)
        largest = chosen.amax(dim=-1, keepdim=True)
        empty = largest == -torch.inf
        largest = largest.masked_fill(empty, 0.0)
        smallest = 0.75 * math.log(torch.finfo(logits.dtype).tiny)
        terms = torch.threshold_(chosen.sub_(largest), smallest, -torch.inf).exp_()
        total = terms.sum(dim=-1, keepdim=True)
        result = (total.log() + largest).squeeze(-1)
        ctx.save_for_backward(terms.div_(total.masked_fill_(empty, 1.0)))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative("masked_logsumexp")
        (softmax,) = ctx.saved_tensors
        return softmax * gradient.unsqueeze(-1), None
