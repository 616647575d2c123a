"""Metrics of rankings whose items are either relevant to the query or not. Each gives one value for each query.

All metrics take ``ranks`` (Q, P): the ranks of each query's positives in ascending order, where the nearest item has
rank 1. Rows with fewer than P positives end with infinity. An item that isn't ranked, such as the query itself, must
not be counted in the ranks. `positive_ranks` computes ``ranks``.
"""

import torch
from torch import Tensor


def positive_ranks(relevant: Tensor) -> Tensor:
    """Compute the ranks (Q, P) float64 of the relevant items of rankings (Q, N) bool, padded with infinity.

    >>> positive_ranks(torch.tensor([[True, False, True], [False, True, False]])).tolist()
    [[1.0, 3.0], [2.0, inf]]
    """
    rows, columns = relevant.nonzero(as_tuple=True)
    return pad_ranks(rows, columns + 1, len(relevant))


def pad_ranks(rows: Tensor, ranks: Tensor, number: int) -> Tensor:
    """Arrange the ranks of the relevant items of Q rankings as (Q, P') float64, rising and padded with infinity.

    >>> pad_ranks(torch.tensor([0, 0, 1]), torch.tensor([1, 3, 2]), number=2).tolist()
    [[1.0, 3.0], [2.0, inf]]

    ``rows`` (P,) is the ranking of each item, rising, and ``ranks`` (P,) rises in each ranking.
    """
    starts = torch.searchsorted(rows, torch.arange(number + 1, device=rows.device))
    largest = int(starts.diff().max()) if number else 0
    padded = torch.full((number, largest), torch.inf, dtype=torch.float64, device=rows.device)
    padded[rows, torch.arange(len(rows), device=rows.device) - starts[rows]] = ranks.double()
    return padded


def count_positives(ranks: Tensor) -> Tensor:
    """Count the positives of each query. (Q, P) -> (Q,) int64

    >>> count_positives(torch.tensor([[1.0, 3.0], [2.0, torch.inf]])).tolist()
    [2, 1]
    """
    return torch.searchsorted(ranks, ranks.new_full((len(ranks), 1), torch.inf)).squeeze(1)


def recall_at_k(ranks: Tensor, k: int) -> Tensor:
    """Tell whether any of the k nearest items is a positive (hit rate): 1 or 0. (Q, P) -> (Q,) float64

    A query without positives gives 0; exclude it from the mean.

    >>> recall_at_k(torch.tensor([[1.0, 3.0], [2.0, torch.inf]]), k=1).tolist()
    [1.0, 0.0]
    """
    return (ranks[:, :1] <= k).sum(dim=1, dtype=torch.float64)


def average_precision(ranks: Tensor) -> Tensor:
    """Compute average precision over the whole ranking. (Q, P) -> (Q,) float64

    AP = 1 / R sum_k k / rank(k), where rank(k) is the rank of the k-th nearest of the R positives. A query without
    positives gives NaN.

    >>> average_precision(torch.tensor([[1.0, 4.0], [2.0, torch.inf]])).tolist()
    [0.75, 0.5]
    """
    return precisions(ranks).sum(dim=1) / count_positives(ranks)


def map_at_k(ranks: Tensor, k: int) -> Tensor:
    """Compute average precision in which positives beyond rank k count 0, over min(k, R). (Q, P) -> (Q,) float64

    R is the number of positives. With k = 1000 the mean is mAP@1k of ILIAS (https://arxiv.org/abs/2502.11748). A query
    without positives gives NaN.

    >>> map_at_k(torch.tensor([[1.0, 4.0], [2.0, torch.inf]]), k=3).tolist()
    [0.5, 0.5]
    """
    return (precisions(ranks) * (ranks <= k)).sum(dim=1) / count_positives(ranks).clamp(max=k)


def mp_at_k(ranks: Tensor, k: int) -> Tensor:
    """Compute the share of positives among the min(k, rank of the last positive) nearest. (Q, P) -> (Q,) float64

    The mean is mP@k of ROxford5k and RParis6k (revisitop's code). A query without positives gives NaN.

    >>> mp_at_k(torch.tensor([[1.0, 4.0], [2.0, torch.inf]]), k=10).tolist()
    [0.5, 0.5]
    """
    last = ranks.where(ranks < torch.inf, 0).max(dim=1).values if ranks.shape[1] else ranks.new_zeros(len(ranks))
    depth = last.clamp(max=k).double()
    return (ranks <= depth[:, None]).sum(dim=1) / depth


def trapezoid_ap(ranks: Tensor) -> Tensor:
    """Compute the area below the curve of precision and recall by trapezoids. (Q, P) -> (Q,) float64

    Each positive adds the mean of the precision at its rank and just before it, over R; before rank 1 the precision is
    1. This is the AP of ROxford5k and RParis6k (revisitop's code). A query without positives gives NaN.

    >>> trapezoid_ap(torch.tensor([[1.0, 3.0], [2.0, torch.inf]])).tolist()
    [0.7916666666666666, 0.25]
    """
    nearer = torch.arange(ranks.shape[1], dtype=torch.float64, device=ranks.device)
    before = torch.where(ranks > 1, nearer / (ranks - 1), 1.0)
    return (precisions(ranks) + before).sum(dim=1) / (2 * count_positives(ranks))


def map_at_r(ranks: Tensor, counts: Tensor | None = None) -> Tensor:
    """Compute average precision in which positives beyond rank R count 0. (Q, P) -> (Q,) float64

    R is the number of positives. The mean of the values is MAP@R of "A Metric Learning Reality Check" (Musgrave et
    al., 2020). A query without positives gives NaN. The padding of ``ranks`` doesn't change a value, not even by
    rounding.

    >>> map_at_r(torch.tensor([[1.0, 4.0], [1.0, 2.0]])).tolist()
    [0.5, 1.0]
    >>> map_at_r(torch.tensor([[1.0, torch.inf]]), counts=torch.tensor([2])).tolist()
    [0.5]

    Args:
        ranks: (Q, P) ranks of the positives, of which those beyond R may be missing if ``counts`` are given.
        counts: (Q,) number R of positives of each query; None counts the ranks.
    """
    counts = count_positives(ranks) if counts is None else counts
    first_ranks = trim_ranks(ranks, counts)
    counted = precisions(first_ranks) * (first_ranks <= counts[:, None])
    # cumsum adds from left to right; the order in which sum adds depends on the number of columns
    total = counted.cumsum(dim=1)[:, -1] if counted.shape[1] else counted.sum(dim=1)
    return total / counts


def r_precision(ranks: Tensor, counts: Tensor | None = None) -> Tensor:
    """Compute the share of a query's R positives that are among the R nearest items. (Q, P) -> (Q,) float64

    A query without positives gives NaN. The arguments are those of `map_at_r`.

    >>> r_precision(torch.tensor([[1.0, 4.0], [1.0, 2.0]])).tolist()
    [0.5, 1.0]
    """
    counts = count_positives(ranks) if counts is None else counts
    return _count_up_to(ranks, counts).double() / counts


def mmp_at_5(ranks: Tensor, counts: Tensor | None = None) -> Tensor:
    """Compute the share of positives among the min(R, 5) nearest items. (Q, P) -> (Q,) float64

    It is UnED's modified mean precision at 5 (Ypsilantis et al., 2023), with the arguments of `r_precision`.

    >>> mmp_at_5(torch.tensor([[1.0, 3.0], [2.0, torch.inf]])).tolist()
    [0.5, 0.0]
    """
    counts = count_positives(ranks) if counts is None else counts
    return r_precision(ranks, counts.clamp(max=5))


def trim_ranks(ranks: Tensor, last: Tensor) -> Tensor:
    """Drop the columns in which every rank is beyond the last one (Q,) that counts for its query. (Q, P) -> (Q, P')

    >>> trim_ranks(torch.tensor([[1.0, 2.0, 9.0], [1.0, 3.0, 4.0]]), last=torch.tensor([3, 3])).tolist()
    [[1.0, 2.0], [1.0, 3.0]]
    """
    return ranks[:, : int(_count_up_to(ranks, last).max()) if len(ranks) else 0]


def _count_up_to(ranks: Tensor, last: Tensor) -> Tensor:
    """Count the ranks of each query up to its last one that counts. (Q, P), (Q,) -> (Q,) int64"""
    return torch.searchsorted(ranks, last.double()[:, None], right=True).squeeze(1)


def precisions(ranks: Tensor) -> Tensor:
    """Compute the precision at the rank of each positive. (Q, P) -> (Q, P) float64"""
    return torch.arange(1, ranks.shape[1] + 1, dtype=torch.float64, device=ranks.device) / ranks
