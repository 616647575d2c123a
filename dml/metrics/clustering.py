from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

Partition = Tensor | npt.NDArray[Any]
Average = Literal["arithmetic", "geometric"]


def nmi(assignment: Partition, labels: Partition, average: Average = "arithmetic") -> float:
    """(N,), (N,) -> I(A; Y) / mean(H(A), H(Y)), in [0, 1]; 1 if both are a single group.

    LNS Eq. 3.9 is the arithmetic mean, its Eq. 2.31 the geometric.
    """
    return float(normalized_mutual_info_score(_ids(labels), _ids(assignment), average_method=average))


def ami(assignment: Partition, labels: Partition, average: Average = "arithmetic") -> float:
    """(N,), (N,) -> (I - E[I]) / (mean(H(A), H(Y)) - E[I]): NMI corrected for what chance gives these sizes.

    E[I] is the mean over all partitions with the sizes of these two, exactly (Vinh et al., 2010). 1 if the
    partitions are the same, 0 if only one of them is a single group.
    """
    table = contingency_matrix(_ids(labels), _ids(assignment), sparse=True, dtype=np.int64)
    classes, clusters = (np.asarray(table.sum(axis=axis)).ravel() for axis in (1, 0))
    if _is_permutation(table):
        return 1.0
    if len(classes) == 1 or len(clusters) == 1:
        return 0.0
    expected = _expected_information(classes, clusters)
    entropies = np.array([_entropy(classes), _entropy(clusters)])
    mean = entropies.mean() if average == "arithmetic" else np.sqrt(entropies.prod())
    return float((mutual_info_score(None, None, contingency=table) - expected) / (mean - expected))


def pair_f1(assignment: Partition, labels: Partition) -> float:
    """(N,), (N,) -> F1 over pairs of items: those in one cluster are retrieved, those of one class relevant.

    1 if neither has a pair: all items alone, twice, is the same partition.
    """
    table = contingency_matrix(_ids(labels), _ids(assignment), sparse=True, dtype=np.int64)
    # sums of n^2 are ordered pairs plus the N pairs of an item with itself; int64 holds them up to N = 3e9
    both = int((table.data**2).sum()) - int(table.sum())
    one_class = int((np.asarray(table.sum(axis=1)) ** 2).sum()) - int(table.sum())
    one_cluster = int((np.asarray(table.sum(axis=0)) ** 2).sum()) - int(table.sum())
    return 2 * both / (one_class + one_cluster) if one_class + one_cluster else 1.0


def _expected_information(classes: npt.NDArray[np.int64], clusters: npt.NDArray[np.int64]) -> float:
    """E[I] of two random partitions of N items into groups of these sizes, in nats.

    Groups of a and b items share n with the hypergeometric probability P(n) = C(a, n) C(N - a, b - n) / C(N, b), and
    then add n/N log(N n / (a b)). Equal sizes add the same, so each pair of sizes is summed once: thousands of
    classes have tens of sizes.
    """
    total = int(classes.sum())
    # log n! of 0 to N
    factorial = torch.lgamma(torch.arange(1, total + 2, dtype=torch.float64)).numpy()
    expected = 0.0
    for a, classes_of_a in zip(*np.unique(classes, return_counts=True), strict=True):
        for b, clusters_of_b in zip(*np.unique(clusters, return_counts=True), strict=True):
            n = np.arange(max(1, a + b - total), min(a, b) + 1)
            log_probability = (
                factorial[[a, b, total - a, total - b]].sum()
                - factorial[total]
                - (factorial[n] + factorial[a - n] + factorial[b - n] + factorial[total - a - b + n])
            )
            information = n / total * np.log(total * n / (float(a) * b))
            expected += classes_of_a * clusters_of_b * float(np.exp(log_probability) @ information)
    return expected


def _entropy(sizes: npt.NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())


def _is_permutation(table: Any) -> bool:
    """Whether the two partitions are the same: every class meets one cluster, and every cluster one class."""
    return bool(table.nnz == table.shape[0] == table.shape[1])


def _ids(partition: Partition) -> npt.NDArray[Any]:
    return partition.detach().cpu().numpy() if isinstance(partition, Tensor) else np.asarray(partition)
