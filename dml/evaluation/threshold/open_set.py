"""The nearest items of queries whose class is in the gallery, and of queries whose class isn't."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dml.metrics.pair_counts import BLOCK, LabelledPairs
from dml.ops.precision import without_tf32

Metrics = dict[str, float]


class NearestItems(NamedTuple):
    """The nearest item that each search finds.

    Args:
        scores: (S,) similarity of the nearest item.
        is_known: (S,) whether the search was among all items; otherwise it was among those of other classes than the
            query's, as if the gallery lacked the class.
        is_right: (S,) whether the nearest item is of the query's class.
    """

    scores: npt.NDArray[np.float32]
    is_known: npt.NDArray[np.bool_]
    is_right: npt.NDArray[np.bool_]


def find_nearest(pairs: LabelledPairs) -> NearestItems:
    """Find the nearest item of each query twice: among all items, and among those of other classes.

    Items that a query excludes are never found. A search that has nothing to find is left out.

    Args:
        pairs: the images, and perhaps the gallery that they search.
    """
    items, item_labels, excluded = pairs.embeddings, pairs.labels, pairs.excluded
    if pairs.gallery is None:
        excluded = np.arange(len(items), dtype=np.int64)[:, None]
    else:
        items, item_labels = pairs.gallery, np.asarray(pairs.gallery_labels)
    scores, rights = [], []
    for start in range(0, len(pairs.labels), size := max(1, BLOCK // len(items))):
        rows = slice(start, start + size)
        with without_tf32():
            similarities = pairs.embeddings[rows] @ items.T
        if excluded is not None:
            queries, places = np.nonzero(excluded[rows] >= 0)
            similarities[queries, excluded[rows][queries, places]] = -torch.inf
        is_same = torch.from_numpy(pairs.labels[rows][:, None] == item_labels).to(items.device)
        best = similarities.max(dim=1)
        best_other = similarities.masked_fill_(is_same, -torch.inf).max(dim=1)
        scores.append(torch.stack([best.values, best_other.values]).cpu().numpy())
        rights.append(is_same.gather(1, best.indices[:, None])[:, 0].cpu().numpy())
    found, is_right = np.concatenate(scores, axis=1), np.concatenate(rights)
    is_known, has_found = np.broadcast_to([[True], [False]], found.shape), np.isfinite(found)
    return NearestItems(found[has_found], is_known[has_found], (is_known & is_right)[has_found])


def judge_nearest(nearest: NearestItems, threshold: float | None) -> Metrics:
    """Compute how well the nearest item's similarity tells queries of known classes from others.

    Args:
        nearest: what the queries find.
        threshold: similarity from which on the nearest item is judged to be of the query's class; None for the first of
            the metrics alone.

    Returns:
        ``unknown_auroc``: the area under the ROC curve of the similarity, 0.5 by chance. ``known_accepted`` and
        ``unknown_accepted``: the shares of searches whose nearest item has at least the threshold.
        ``known_identified``: the share of searches among all items that are accepted and find an item of the query's
        class (detection and identification). ``wrong_share``: the share of these accepted searches that find an item
        of another class, 0 without any. No metric if there are searches of one kind alone.
    """
    scores, is_known, is_right = nearest
    if is_known.all() or not is_known.any():
        return {}
    from sklearn.metrics import roc_auc_score  # late: it takes half a second, which a start waits for

    metrics = {"unknown_auroc": float(roc_auc_score(is_known, scores))}
    if threshold is not None:
        is_accepted = scores >= np.float32(threshold)
        is_same = is_accepted & is_known
        metrics |= {
            "known_accepted": float(is_accepted[is_known].mean()),
            "known_identified": float((is_accepted & is_right)[is_known].mean()),
            "unknown_accepted": float(is_accepted[~is_known].mean()),
            "wrong_share": float((~is_right[is_same]).mean()) if is_same.any() else 0.0,
        }
    return metrics
