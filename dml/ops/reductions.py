import math
from typing import Any

import torch
from torch import Tensor


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension among the entries in ``mask``; 0 elsewhere, and in a row without any.

    The row's largest entry is subtracted first, so that no logit is too large for it.
    """
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~mask, lowest).softmax(dim=-1) * mask


def masked_logsumexp(logits: Tensor, mask: Tensor) -> Tensor:
    """log of the sum of exp over the last dimension's entries in ``mask``; -inf, with a zero gradient, without any.

    A term that is nothing beside the row's largest (1e-28 of it in float32) counts as 0: it has no part in the
    sum, and its gradients would soon be subnormal numbers, for which processors take a hundred times as long.
    """
    result: Tensor = _MaskedLogSumExp.apply(logits, mask)
    return result


class _MaskedLogSumExp(torch.autograd.Function):
    """Keeps one matrix for the gradient, the softmax."""

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
        (softmax,) = ctx.saved_tensors
        return softmax * gradient.unsqueeze(-1), None
