import torch
from torch import Tensor

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
    """Return a view of the entries (Q,) that pair each query with itself.

    >>> pairs = torch.arange(6).reshape(2, 3)
    >>> own_entries(pairs, slice(1, 3)).tolist()
    [1, 5]

    Args:
        pairs: (Q, B) entries of the queries and all rows of the batch.
        queries: rows of the batch that are the queries, without a step.
    """
    return pairs.diagonal(offset=queries.start or 0)


def pair_masks(labels: Tensor, queries: slice = ALL) -> tuple[Tensor, Tensor]:
    """Tell which pairs of a batch are positive and which are negative; no row is paired with itself.

    >>> positives, negatives = pair_masks(torch.tensor([0, 0, 1]))
    >>> positives[0].tolist(), negatives[0].tolist()
    ([False, True, False], [False, False, True])

    Args:
        labels: (B,) labels of the batch.
        queries: rows of the batch whose pairs are returned.

    Returns:
        The masks of positive pairs (Q, B) bool and of negative pairs (Q, B) bool.
    """
    same = labels[queries, None] == labels[None, :]
    positives = same.clone()
    own_entries(positives, queries).fill_(False)
    return positives, ~same


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
