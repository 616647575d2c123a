import torch
from torch import Tensor


def k_nearest(distances: Tensor, k: int, rows_at_once: int) -> tuple[Tensor, Tensor]:
    """Find the k smallest distances of each row and their items, smallest first, ties by index. (B, G) -> 2 x (B, k)

    It works on any device. torch's top-k chooses freely among equal distances. It is asked for one more than k: only a
    row whose k-th distance is also the next one can have been given the wrong items, and is sorted.

    Args:
        distances: (B, G) without NaN.
        k: number of items to find for each row, 1 to G.
        rows_at_once: number of rows to sort at a time; sorting takes several times the memory of their distances.
    """
    values, items = distances.topk(min(k + 1, distances.shape[1]), dim=1, largest=False)
    is_unsure = (values[:, k - 1 : k] == values[:, k:]).any(dim=1)
    values, items = _by_value_and_item(values[:, :k], items[:, :k])
    for rows in torch.split(is_unsure.nonzero().flatten(), rows_at_once):
        ascending, order = (distances[rows] + 0).sort(dim=1, stable=True)
        values[rows], items[rows] = ascending[:, :k], order[:, :k]
    return values, items


def _by_value_and_item(values: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """(B, k), (B, k) -> the same by rising value, equal ones by rising item."""
    items, order = items.sort(dim=1)
    # + 0 makes -0 a 0: they are equal, but their bits, which a GPU sorts by, are not
    values, order = (values.gather(1, order) + 0).sort(dim=1, stable=True)
    return values, items.gather(1, order)
