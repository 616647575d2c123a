"""How well the embeddings of a new model can be compared with those of an old one.

M(q, g) is the score of a retrieval with the queries of model q in the gallery of model g. A compatibility matrix C of T
models from old to new has M(i, j) in row i and column j <= i; what is above the diagonal isn't read.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dml.runtime.errors import InputError


def average_compatibility(scores: npt.ArrayLike) -> float:
    """Compute AC, the share of pairs of models of which the newer one searches the older one's gallery better.

    2 / (T (T - 1)) * number of i > j with C[i][j] > C[j][j]: equal scores don't count (d-Simplex, arXiv:2405.02581).
    NaN for a single model.

    >>> average_compatibility([[50, 0, 0], [48, 60, 0], [52, 61, 70]])
    0.6666666666666666
    """
    matrix = _check_scores(scores)
    newer, older = np.tril_indices(len(matrix), -1)
    return float((matrix[newer, older] > matrix[older, older]).mean()) if len(newer) else float("nan")


def average_multimodel_score(scores: npt.ArrayLike) -> float:
    """Compute AM, the mean of a compatibility matrix on its diagonal and below it, which papers print as AA too.

    >>> average_multimodel_score([[50, 0], [48, 60]])
    52.666666666666664
    """
    matrix = _check_scores(scores)
    return float(matrix[np.tril_indices(len(matrix))].mean())


def _check_scores(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(np.tril(matrix)).all():
        raise InputError(f"scores of shape {matrix.shape}: expected (T, T), finite on the diagonal and below it")
    return matrix


def mean_pair_distances(
    queries: npt.NDArray[Any],
    gallery: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    gallery_labels: npt.NDArray[Any],
    excluded: npt.NDArray[np.int64] | None = None,
) -> tuple[float, float]:
    """Compute the mean cosine distances of all pairs of one class, and of different classes; NaN without such a pair.

    A new model is compatible in expectation if its queries are at most as far from the old embeddings of their class as
    the old queries are, and at least as far from those of other classes; BCT (arXiv:2003.11942) asks it of each pair.

    >>> mean_pair_distances(np.eye(2), np.eye(2), np.array([0, 1]), np.array([0, 1]))
    (0.0, 1.0)

    Args:
        queries: (Q, D) embeddings of unit length.
        gallery: (G, D) embeddings of unit length.
        labels: (Q,) classes of the queries.
        gallery_labels: (G,) classes of the items.
        excluded: (Q, M) items of the gallery whose pair with the query doesn't count, padded with -1; None for none.
    """
    names, classes = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)
    query_classes, item_classes = np.split(classes, [len(labels)])
    sums, counts = np.zeros((len(names), gallery.shape[1])), np.bincount(item_classes, minlength=len(names))
    np.add.at(sums, item_classes, gallery)
    total, pairs = queries.sum(axis=0, dtype=np.float64) @ sums.sum(axis=0), len(labels) * len(gallery_labels)
    same, same_pairs = (queries * sums[query_classes]).sum(), counts[query_classes].sum()
    if excluded is not None:
        rows, places = np.nonzero(excluded >= 0)
        items = excluded[rows, places]
        products = (queries[rows] * gallery[items]).sum(axis=1, dtype=np.float64)
        is_same = query_classes[rows] == item_classes[items]
        total, pairs = total - products.sum(), pairs - len(rows)
        same, same_pairs = same - products[is_same].sum(), same_pairs - is_same.sum()
    means = [s / n if n else np.nan for s, n in ((same, same_pairs), (total - same, pairs - same_pairs))]
    return 1 - float(means[0]), 1 - float(means[1])
