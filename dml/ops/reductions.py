import torch
from torch import Tensor


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension among the entries in ``mask``; 0 elsewhere, and in a row without any.

    The row's largest entry is subtracted first, so that no logit is too large for it.
    """
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~mask, lowest).softmax(dim=-1) * mask


def masked_logsumexp(logits: Tensor, mask: Tensor) -> Tensor:
    """log of the sum of exp over the last dimension's entries in ``mask``; -inf, with a zero gradient, without any."""
    return logits.masked_fill(~mask, -torch.inf).logsumexp(dim=-1)
