"""The nearest items by distance, ties by index."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

SORT_FACTOR = 16
"""Memory that sorting distances takes, as a multiple of the memory of the distances."""


def k_nearest(distances: Tensor, k: int, rows_at_once: int) -> tuple[Tensor, Tensor]:
    """Find the k smallest distances of each row, on any device; ties are sorted by index. (B, G) -> (B, k), (B, k)

    torch's top-k chooses arbitrarily among equal distances. It is therefore run for k + 1 items. Only rows whose k-th
    and next distances are equal can have wrong items; these rows are sorted completely.

    >>> values, items = k_nearest(torch.tensor([[0.5, 0.1, 0.5, 0.3]]), k=3, rows_at_once=1)
    >>> items.tolist()
    [[1, 3, 0]]

    Args:
        distances: (B, G) distances without NaN.
        k: number of items to find for each row, 1 to G.
        rows_at_once: number of rows to sort at a time; sorting takes several times the memory of the distances.

    Returns:
        The distances (B, k), smallest first, and the indices of the items (B, k).
    """
    values, items = distances.topk(min(k + 1, distances.shape[1]), dim=1, largest=False)
    is_unsure = (values[:, k - 1 : k] == values[:, k:]).any(dim=1)
    values, items = _by_value_and_item(values[:, :k], items[:, :k])
    for rows in torch.split(is_unsure.nonzero().flatten(), rows_at_once):
        ascending, order = sort_with_ties(distances[rows])
        values[rows], items[rows] = ascending[:, :k], order[:, :k]
    return values, items


def sort_with_ties(distances: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row, equal distances by index, on any device. (B, G) -> (B, G), (B, G)

    -0 and 0 are equal; a GPU would sort them by their bits, which differ.

    >>> values, items = sort_with_ties(torch.tensor([[0.0, 0.5, -0.0]]))
    >>> items.tolist()
    [[0, 2, 1]]

    Args:
        distances: (B, G) distances without NaN.

    Returns:
        The distances, smallest first, and the indices of the items.
    """
    values, items = (distances + 0).sort(dim=1, stable=True)  # -0 + 0 is 0
    return values, items


def _by_value_and_item(values: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Sort values and items (B, k) by value, and equal values by item."""
    items, order = items.sort(dim=1)
    values, order = sort_with_ties(values.gather(1, order))
    return values, items.gather(1, order)


def nearest(distances: Floats, k: int) -> Integers:
    """Return the indices of the k smallest distances, smallest first; ties are sorted by index. (N,) -> (k,)

    >>> nearest(np.array([0.5, 0.1, 0.5, 0.3], dtype=np.float32), k=3).tolist()
    [1, 3, 0]

    Args:
        distances: (N,) distances of the items.
        k: number of indices, 0 to N.
    """
    if not k:
        return np.empty(0, dtype=np.int64)
    limit = np.partition(distances, k - 1)[k - 1]
    within = np.flatnonzero(distances <= limit)
    return within[np.argsort(distances[within], kind="stable")[:k]]
