from torch import Tensor

ALL = slice(None)
"""All rows of a batch, as the queries of a loss."""


def finest(labels: Tensor) -> Tensor:
    """Return the labels of the finest level, column 0, whole numbers as int64. (B,) or (B, L) -> (B,)

    >>> import torch
    >>> finest(torch.tensor([[3, 0], [4, 0]])).tolist()
    [3, 4]
    """
    column = labels if labels.ndim == 1 else labels[:, 0]
    return column if column.is_floating_point() else column.long()


def own_entries(pairs: Tensor, queries: slice) -> Tensor:
    """Return a view of the entries (Q,) that pair each query with itself.

    >>> import torch
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

    >>> import torch
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
