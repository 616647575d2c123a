"""How relevant an item is to a query, from the levels of the label hierarchy that they share.

Column 0 of the labels is the finest level; an item that shares l of the L levels with the query is "at level l",
so level L is the query's own finest class and level 0 a negative.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dml.ops.errors import InputError


def shared_levels(query_labels: Tensor, item_labels: Tensor) -> Tensor:
    """The number of levels that query and item share. (Q, L), (N, L) -> (Q, N) int64, from 0 to L"""
    levels = torch.zeros(len(query_labels), len(item_labels), dtype=torch.int64, device=query_labels.device)
    for query_column, item_column in zip(query_labels.T, item_labels.T, strict=True):
        levels += query_column[:, None] == item_column[None, :]
    return levels


def level_counts(levels: Tensor, depth: int) -> Tensor:
    """abs(Omega(l)): a query's items at exactly each level. (Q, N) -> (Q, depth + 1) int64

    An item marked -1 is none of the query's: so the query itself is left out of its own list.
    """
    return torch.stack([(levels == level).sum(dim=1) for level in range(depth + 1)], dim=1)


def power_relevance(counts: Tensor, alpha: float = 1.0) -> Tensor:
    """HAPPIER's Eq. 4: (l / L)^alpha / abs(Omega(l)), 0 at level 0. (Q, L + 1) floating counts -> (Q, L + 1)

    Every level's items share its weight (l / L)^alpha, so a crowded level's item can be less relevant than one
    of a coarser level. A level without items gets its weight undivided, which no item has.
    """
    depth = counts.shape[1] - 1
    weights = (torch.arange(depth + 1, dtype=counts.dtype, device=counts.device) / depth) ** alpha
    weights[0] = 0.0  # 0 ** 0 is 1
    return weights / counts.clamp(min=1)


def weighted_ap_relevance(counts: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    """The relevance with which H-AP is the sum of w_p AP(p) (HAPPIER, Table 6). (Q, L + 1) -> (Q, L + 1)

    rel(l) = sum of w_p / abs(items at level >= p) over p from 1 to l: each AP's positives, the items that share
    p levels or more, share its weight.

    Args:
        counts: floating, of ``level_counts``.
        weights: (L,), in the order of the labels' columns, the finest first; None weighs every level 1 / L.

    Raises:
        InputError: if there isn't a weight for every level.
    """
    depth = counts.shape[1] - 1
    if weights is not None and len(weights) != depth:
        raise InputError(f"relevance.weights={list(weights)}: {len(weights)} weights for {depth} levels of labels")
    finest_first = counts.new_full((depth,), 1.0 / depth) if weights is None else counts.new_tensor(list(weights))
    at_least = counts.flip(1).cumsum(dim=1).flip(1)[:, 1:]
    steps = finest_first.flip(0) / at_least.clamp(min=1)
    return torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(dim=1)], dim=1)
