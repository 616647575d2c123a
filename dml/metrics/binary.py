"""Metrics of a ranking whose items are relevant to the query or not: one value a query.

All take the ranks of each query's positives in the ranking, from 1 for the nearest item, rising; the rest of a shorter
row is infinity. An item that isn't in the ranking, such as the query itself, has no rank.
"""

import torch
from torch import Tensor


def positive_ranks(relevant: Tensor) -> Tensor:
    """Rankings, nearest first -> the ranks of the relevant items. (Q, N) bool -> (Q, P), P the most of any query"""
    places = torch.arange(1, relevant.shape[1] + 1, dtype=torch.float64, device=relevant.device)
    most = int(relevant.sum(dim=1).max()) if len(relevant) else 0
    return torch.where(relevant, places, torch.inf).sort(dim=1).values[:, :most].contiguous()


def number_of(ranks: Tensor) -> Tensor:
    """How many positives each query has. (Q, P) -> (Q,) int64"""
    return torch.searchsorted(ranks, ranks.new_full((len(ranks), 1), torch.inf)).squeeze(1)


def recall_at_k(ranks: Tensor, k: int) -> Tensor:
    """1 if any of the k nearest is a positive (hit rate). (Q, P) -> (Q,) float64

    A query without positives scores 0: leave it out of the mean.
    """
    return (ranks[:, :1] <= k).any(dim=1).double()


def average_precision(ranks: Tensor) -> Tensor:
    """The mean over the positives of the precision at their ranks. (Q, P) -> (Q,) float64

    AP = 1 / R sum_k k / rank(k), k the k-th nearest of the R positives, over the whole ranking. A query without
    positives gives NaN.
    """
    return _precisions(ranks).sum(dim=1) / number_of(ranks)


def map_at_r(ranks: Tensor) -> Tensor:
    """`average_precision` in which positives beyond rank R count 0. (Q, P) -> (Q,) float64

    MAP@R of "A Metric Learning Reality Check" (Musgrave et al., 2020). A query without positives gives NaN.
    """
    number = number_of(ranks)
    inside = up_to(ranks, number)
    return (_precisions(inside) * (inside <= number[:, None])).sum(dim=1) / number


def r_precision(ranks: Tensor) -> Tensor:
    """The share of the R positives that are among the R nearest items. (Q, P) -> (Q,) float64

    A query without positives gives NaN.
    """
    number = number_of(ranks)
    return (up_to(ranks, number) <= number[:, None]).sum(dim=1).double() / number


def up_to(ranks: Tensor, last: Tensor) -> Tensor:
    """The columns with ranks up to the `last` of any query. (Q, P), (Q,) -> (Q, P')"""
    columns = torch.searchsorted(ranks, last.double()[:, None], right=True)
    return ranks[:, : int(columns.max()) if len(ranks) else 0]


def _precisions(ranks: Tensor) -> Tensor:
    return torch.arange(1, ranks.shape[1] + 1, dtype=torch.float64, device=ranks.device) / ranks
