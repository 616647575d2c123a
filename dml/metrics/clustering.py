from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dml.runtime.errors import check_choice

Partition = Tensor | npt.NDArray[Any]
Average = Literal["arithmetic", "geometric"]


def nmi(assignment: Partition, labels: Partition, average: Average = "arithmetic") -> float:
    """Compute normalized mutual information I(A; Y) / mean(H(A), H(Y)) of clusters (N,) and classes (N,), from 0 to 1.

    It is 1 if there is only one cluster and only one class. The thesis on local neighborhood sampling has the
    arithmetic mean in Eq. 3.9 and the geometric mean in Eq. 2.31.

    >>> round(nmi(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])), 3)
    0.344
    """
    from sklearn.metrics import normalized_mutual_info_score  # late: it takes half a second, also below

    check_choice("average", average, get_args(Average))
    return float(normalized_mutual_info_score(_to_numpy(labels), _to_numpy(assignment), average_method=average))


def ami(assignment: Partition, labels: Partition, average: Average = "arithmetic") -> float:
    """Compute adjusted mutual information (I - E[I]) / (mean(H(A), H(Y)) - E[I]), which is 0 on average by chance.

    E[I] is the exact mean of I over all partitions with the same group sizes (Vinh et al., 2010). The value is 1 if
    clusters (N,) and classes (N,) are the same partition, 0 if just one of them has a single group.

    >>> round(ami(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2])), 3)
    0.571
    """
    from sklearn.metrics import mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    check_choice("average", average, get_args(Average))
    table = contingency_matrix(_to_numpy(labels), _to_numpy(assignment), sparse=True, dtype=np.int64)
    classes, clusters = (np.asarray(table.sum(axis=axis)).ravel() for axis in (1, 0))
    if table.nnz == table.shape[0] == table.shape[1]:  # each class has one cluster, each cluster one class
        return 1.0
    if len(classes) == 1 or len(clusters) == 1:
        return 0.0
    expected = _expected_information(classes, clusters)
    entropies = np.array([_entropy(classes), _entropy(clusters)])
    mean = entropies.mean() if average == "arithmetic" else np.sqrt(entropies.prod())
    return float((mutual_info_score(None, None, contingency=table) - expected) / (mean - expected))


def pair_f1(assignment: Partition, labels: Partition) -> float:
    """Compute F1 over pairs of items, where pairs in one cluster are retrieved and pairs of one class are relevant.

    It is 1 if every cluster and every class has one item alone.

    >>> pair_f1(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
    0.4
    """
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(_to_numpy(labels), _to_numpy(assignment), sparse=True, dtype=np.int64)
    # Sums of n^2 count ordered pairs and the N pairs of an item with itself; int64 holds them up to N = 3e9.
    in_both = int((table.data**2).sum()) - int(table.sum())
    in_class = int((np.asarray(table.sum(axis=1)) ** 2).sum()) - int(table.sum())
    in_cluster = int((np.asarray(table.sum(axis=0)) ** 2).sum()) - int(table.sum())
    return 2 * in_both / (in_class + in_cluster) if in_class + in_cluster else 1.0


def _expected_information(classes: npt.NDArray[np.int64], clusters: npt.NDArray[np.int64]) -> float:
    """Compute E[I] of two random partitions of N items into groups of the given sizes, in nats."""
    total = int(classes.sum())
    log_factorials = torch.lgamma(torch.arange(1, total + 2, dtype=torch.float64)).numpy()  # log n! for n from 0 to N
    expected = 0.0
    # n of a class of a and a cluster of b items are in common with the hypergeometric probability of n. Groups of equal
    # sizes are computed once: thousands of classes have only tens of different sizes.
    for a, num_classes in zip(*np.unique(classes, return_counts=True), strict=True):
        for b, num_clusters in zip(*np.unique(clusters, return_counts=True), strict=True):
            n = np.arange(max(1, a + b - total), min(a, b) + 1)
            log_probability = (
                log_factorials[[a, b, total - a, total - b]].sum()
                - log_factorials[total]
                - (
                    log_factorials[n]
                    + log_factorials[a - n]
                    + log_factorials[b - n]
                    + log_factorials[total - a - b + n]
                )
            )
            information = n / total * np.log(total * n / (float(a) * b))
            expected += num_classes * num_clusters * float(np.exp(log_probability) @ information)
    return expected


def _entropy(sizes: npt.NDArray[np.int64]) -> float:
    """Compute the entropy of a partition with these group sizes, in nats."""
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())


def _to_numpy(partition: Partition) -> npt.NDArray[Any]:
    return partition.detach().cpu().numpy() if isinstance(partition, Tensor) else np.asarray(partition)
