"""Retrieval and clustering metrics, as functions that give one value for each query or clustering."""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "ami",
    "asi",
    "average_precision",
    "count_by_level",
    "h_ap",
    "map_at_r",
    "ndcg",
    "nmi",
    "pair_f1",
    "positive_ranks",
    "r_precision",
    "recall_at_k",
]

if TYPE_CHECKING:
    from dml.metrics.binary import average_precision, map_at_r, positive_ranks, r_precision, recall_at_k
    from dml.metrics.clustering import ami, nmi, pair_f1
    from dml.metrics.graded import asi, count_by_level, h_ap, ndcg
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "ami": "clustering",
            "asi": "graded",
            "average_precision": "binary",
            "count_by_level": "graded",
            "h_ap": "graded",
            "map_at_r": "binary",
            "ndcg": "graded",
            "nmi": "clustering",
            "pair_f1": "clustering",
            "positive_ranks": "binary",
            "r_precision": "binary",
            "recall_at_k": "binary",
        },
    )
