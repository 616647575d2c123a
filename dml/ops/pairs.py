"""Pairs of the items of a batch: masks, distances, and reductions over the pairs that a mask leaves."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dml.ops.gradients import refuse_second_derivative

ALL = slice(None)
"""All rows of a batch, as the queries of a loss."""


def finest(labels: Tensor) -> Tensor:
    """Return the labels of the finest level, column 0, whole numbers as int64. (B,) or (B, L) -> (B,)

    >>> finest(torch.tensor([[3, 0], [4, 0]])).tolist()
    [3, 4]
    """
    column = labels if labels.ndim == 1 else labels[:, 0]
    return column if column.is_floating_point() else column.long()


def own_entries(pairs: Tensor, queries: slice) -> Tensor:
    """Return a view of the entries (Q,) of pairs (Q, B) that pair each query with itself.

    >>> pairs = torch.arange(6).reshape(2, 3)
    >>> own_entries(pairs, slice(1, 3)).tolist()
    [1, 5]
    """
    return pairs.diagonal(offset=queries.start or 0)


def pair_masks(labels: Tensor, queries: slice = ALL) -> tuple[Tensor, Tensor]:
    """Tell which pairs of a batch are positive and which are negative: two (Q, B) bool; no row is paired with itself.

    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives[0].tolist(), negatives[0].tolist()
    ([False, True, False], [False, False, True])
    """
    same = labels[queries, None] == labels
    positives = same.clone()
    own_entries(positives, queries).fill_(False)
    return positives, ~same


def list_columns(mask: Tensor) -> tuple[Tensor, Tensor]:
    """List the columns in each row of a mask (Q, B) -> columns (Q, K), which of them aren't padding (Q, K) bool"""
    columns = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : int(mask.sum(dim=1).max())]
    return columns, mask.gather(1, columns)


def unit_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Compute Euclidean distances of L2-normalized rows (B, D) and columns (C, D) by one matrix product -> (B, C).

    Distances below the resolution of the product (6e-8 in float64, 1.4e-3 in float32) become 0 with a zero gradient,
    because the direction of the gradient would be rounding errors. NaN stays NaN.

    >>> rows = torch.eye(2, dtype=torch.float64)
    >>> unit_distances(rows, rows[:1]).round(decimals=3).tolist()
    [[0.0], [1.414]]
    """
    squared = 2.0 - 2.0 * rows @ columns.T
    resolution = 16 * torch.finfo(squared.dtype).eps
    apart = ~(squared <= resolution)
    return torch.where(apart, squared, torch.ones_like(squared)).sqrt() * apart


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
