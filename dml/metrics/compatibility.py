"""How well the embeddings of a new model can be compared with those of an old one.

M(q, g) is the score of a retrieval with the queries of model q in the gallery of model g.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.runtime.errors import InputError

Floats = npt.NDArray[np.float64]


def average_compatibility(scores: npt.ArrayLike) -> float:
    """Compute AC, the share of pairs of models in which the newer one searches the older one's gallery better.

    AC = 2 / (T (T - 1)) * number of i > j with C[i][j] > C[j][j], after d-Simplex (arXiv:2405.02581). Equal scores
    don't count, so the same model at every step has an AC of 0.

    >>> average_compatibility([[50, 0, 0], [48, 60, 0], [52, 61, 70]])
    0.6666666666666666

    Args:
        scores: (T, T) compatibility matrix C of T >= 2 models from old to new: the score of the queries of model i in
            the gallery of model j <= i. What is above the diagonal isn't read.

    Raises:
        InputError: if the matrix isn't square, has fewer models, or a score isn't finite.
    """
    matrix = _check_scores(scores, least=2)
    newer, older = np.tril_indices(len(matrix), -1)
    return float((matrix[newer, older] > matrix[older, older]).mean())


def average_multimodel_score(scores: npt.ArrayLike) -> float:
    """Compute AM, the mean of all scores of a compatibility matrix: those of its lower triangle with the diagonal.

    The arguments and errors are those of `average_compatibility`, with T >= 1; the papers print it as AA, too.
    """
    matrix = _check_scores(scores, least=1)
    return float(matrix[np.tril_indices(len(matrix))].mean())


def update_gain(new_old: float, old_old: float, new_new: float) -> float:
    """Compute the share of a new model's gain that is had without embedding the gallery again; NaN without a gain.

    (M(n, o) - M(o, o)) / (M(n*, n*) - M(o, o)), after BCT (arXiv:2003.11942).

    Args:
        new_old: M(n, o), queries of the new model n in the gallery of the old model o.
        old_old: M(o, o).
        new_new: M(n*, n*) of a new model n* that was trained without regard to the old one.
    """
    return (new_old - old_old) / (new_new - old_old) if new_new != old_old else float("nan")


class PairDistances(NamedTuple):
    """The mean cosine distances of pairs of one class and of pairs of different classes; NaN without such a pair."""

    same_class: float
    other_class: float


def mean_pair_distances(
    queries: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    gallery: npt.NDArray[Any],
    gallery_labels: npt.NDArray[Any],
    excluded: npt.NDArray[np.int64] | None = None,
) -> PairDistances:
    """Compute the mean distances of all pairs of a query and an item, exactly and from sums over classes alone.

    A new model is compatible in expectation if its queries are at most as far from the old embeddings of their class
    as the old queries are, and at least as far from those of other classes (arXiv:2003.11942, there for each pair).

    Args:
        queries: (Q, D) embeddings of unit length.
        labels: (Q,) classes of the queries.
        gallery: (G, D) embeddings of unit length.
        gallery_labels: (G,) classes of the items.
        excluded: (Q, M) items of the gallery whose pair with the query doesn't count, padded with -1; None for none.
    """
    names, classes = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)
    query_classes, item_classes = classes[: len(labels)], classes[len(labels) :]
    sums, item_sums = (
        _sum_classes(rows.astype(np.float64), part, len(names))
        for rows, part in ((queries, query_classes), (gallery, item_classes))
    )
    sizes, item_sizes = (np.bincount(part, minlength=len(names)) for part in (query_classes, item_classes))
    same, same_pairs = float((sums * item_sums).sum()), int((sizes * item_sizes).sum())
    total, pairs = float(sums.sum(axis=0) @ item_sums.sum(axis=0)), len(labels) * len(gallery_labels)
    if excluded is not None:
        rows, places = np.nonzero(excluded >= 0)
        items = excluded[rows, places]
        products = np.einsum("nd,nd->n", queries[rows], gallery[items], dtype=np.float64)
        is_same = query_classes[rows] == item_classes[items]
        same, same_pairs = same - float(products[is_same].sum()), same_pairs - int(is_same.sum())
        total, pairs = total - float(products.sum()), pairs - len(rows)
    return PairDistances(
        1.0 - same / same_pairs if same_pairs else float("nan"),
        1.0 - (total - same) / (pairs - same_pairs) if pairs > same_pairs else float("nan"),
    )


def _sum_classes(rows: Floats, classes: npt.NDArray[np.int64], count: int) -> Floats:
    """Sum the rows (N, D) of each of C classes -> (C, D)"""
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, classes, rows)
    return sums


def _check_scores(scores: npt.ArrayLike, least: int) -> Floats:
    matrix = np.asarray(scores, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < least:
        raise InputError(f"scores of shape {matrix.shape}: expected (T, T) of T >= {least} models")
    if not np.isfinite(matrix[np.tril_indices(len(matrix))]).all():
        raise InputError("scores: one on the diagonal or below it isn't finite")
    return matrix
