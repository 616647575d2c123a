"""Relevance of items to queries, from the levels of the label hierarchy that they share.

Column 0 of the labels is the finest level. An item that shares l of the L levels with the query is "of level l". Items
of level L have the query's finest class, and items of level 0 are negatives.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dml.runtime.errors import InputError


def shared_levels(query_labels: Tensor, item_labels: Tensor) -> Tensor:
    """Count the levels that each query and item share, from 0 to L. (Q, L), (N, L) -> (Q, N) int64

    >>> shared_levels(torch.tensor([[0, 0]]), torch.tensor([[0, 0], [1, 0], [2, 1]])).tolist()
    [[2, 1, 0]]
    """
    levels = torch.zeros(len(query_labels), len(item_labels), dtype=torch.int64, device=query_labels.device)
    for query_column, item_column in zip(query_labels.unbind(1), item_labels.unbind(1), strict=True):
        levels += query_column[:, None] == item_column
    return levels


def level_counts(levels: Tensor, depth: int) -> Tensor:
    """Count each query's items of each level; level -1 excludes an item. (Q, N) -> (Q, depth + 1) int64

    >>> level_counts(torch.tensor([[2, 1, 0, -1]]), depth=2).tolist()
    [[1, 1, 1]]
    """
    return torch.stack([(levels == level).sum(dim=1) for level in range(depth + 1)], dim=1)


def power_relevance(counts: Tensor, alpha: float = 1.0) -> Tensor:
    """Compute HAPPIER's relevance of an item of each level l (Eq. 4). (Q, L + 1) -> (Q, L + 1)

    The relevance is (l / L)^alpha, divided by the number of items of level l: the items of a level share a weight. An
    item of a level with many items can therefore be less relevant than an item of a lower level. A level without items
    gets the undivided weight, and level 0 gets 0.

    >>> power_relevance(torch.tensor([[3.0, 2.0, 1.0]])).tolist()
    [[0.0, 0.25, 1.0]]
    """
    depth = counts.shape[1] - 1
    weights = (torch.arange(depth + 1, dtype=counts.dtype, device=counts.device) / depth) ** alpha
    weights[0] = 0.0  # 0 ** 0 is 1
    return weights / counts.clamp(min=1)


def weighted_ap_relevance(counts: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    """Compute the relevance with which H-AP is the weighted sum of the APs of all levels (HAPPIER, Table 6).

    rel(l) is the sum of w_p / n_p over p from 1 to l, where n_p is the number of items of level p or above. These items
    are the positives of AP(p), and they share the weight w_p. Both ``counts`` and the result are (Q, L + 1).

    >>> weighted_ap_relevance(torch.tensor([[3.0, 1.0, 1.0]])).tolist()
    [[0.0, 0.25, 0.75]]

    Args:
        weights: (L,) weights of the levels, the finest level first; None gives every level the weight 1 / L.
    """
    depth = counts.shape[1] - 1
    if weights is not None and len(weights) != depth:
        raise InputError(f"relevance.weights={list(weights)}: {len(weights)} weights for {depth} levels of labels")
    finest_first = counts.new_full((depth,), 1.0 / depth) if weights is None else counts.new_tensor(list(weights))
    at_least = counts.flip(1).cumsum(dim=1).flip(1)[:, 1:]
    steps = finest_first.flip(0) / at_least.clamp(min=1)
    return torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(dim=1)], dim=1)
