"""Retrieval, clustering and verification metrics, as functions of rankings, of clusters and of pairs."""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "ami",
    "asi",
    "average_precision",
    "count_by_level",
    "equal_error_rate",
    "error_rates",
    "fnmr_at_fmr",
    "h_ap",
    "map_at_r",
    "ndcg",
    "nmi",
    "opis",
    "pair_f1",
    "positive_ranks",
    "r_precision",
    "recall_at_k",
]

if TYPE_CHECKING:
    from dml.metrics.binary import average_precision, map_at_r, positive_ranks, r_precision, recall_at_k
    from dml.metrics.clustering import ami, nmi, pair_f1
    from dml.metrics.graded import asi, count_by_level, h_ap, ndcg
    from dml.metrics.pair_verification import equal_error_rate, error_rates, fnmr_at_fmr, opis
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "ami": "clustering",
            "asi": "graded",
            "average_precision": "binary",
            "count_by_level": "graded",
            "equal_error_rate": "pair_verification",
            "error_rates": "pair_verification",
            "fnmr_at_fmr": "pair_verification",
            "h_ap": "graded",
            "map_at_r": "binary",
            "ndcg": "graded",
            "nmi": "clustering",
            "opis": "pair_verification",
            "pair_f1": "clustering",
            "positive_ranks": "binary",
            "r_precision": "binary",
            "recall_at_k": "binary",
        },
    )
