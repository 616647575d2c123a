from collections.abc import Sequence

import numpy as np

from dml.evaluation.items import Items, Labels, checked_items
from dml.evaluation.queries import MEMORY, rank_items
from dml.evaluation.scores import METRICS, Wanted
from dml.metrics.clustering import Average, ami, nmi, pair_f1
from dml.retrieval.clustering import kmeans
from dml.retrieval.rows import Embeddings


def evaluate(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    *,
    metrics: Sequence[str] = METRICS,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    alpha: float = 1.0,
    count_query: bool = False,
    level_weights: Sequence[float] | None = None,
    clustering: bool = True,
    nmi_average: Average = "arithmetic",
    seed: int = 0,
    memory: int = MEMORY,
) -> dict[str, float]:
    """(Q, D), (Q, L) or (Q,), and the same of a gallery -> {metric: fraction}, one set a level.

    Items are ranked by cosine similarity in float32, whatever the length of their embeddings; a zero embedding has
    cosine 0 to all. Ties stand in the gallery's order; equal embeddings always tie. Without a gallery the queries
    are their own, each left out of its own by its index. At level i the positives of a query are the gallery items
    with its label in column i; for the graded metrics an item's level is the number of labels that it shares with
    the query, be they a tree or not. A metric is a mean over the queries that have a positive.

    - level{i}/recall@{k}, ap, map@r, r_precision: `dml.metrics.binary`; AP is over the whole ranking.
    - h_ap, ndcg, asi: `dml.metrics.graded`, over the whole ranking.
    - sum_wap, if asked for: the sum of the levels' AP of each query with `level_weights` (HAPPIER's weighted sum), as
      the H-AP that it is.
    - level{i}/queries_without_positives: how many were left out at the level; without "level{i}/", those left out
      of the graded metrics, which share no level with any item.
    - level{i}/nmi, ami, f1: k-means of the queries' unit embeddings into as many clusters as they have labels at
      the level. All queries count, the gallery has no part in it.

    Only what is asked for is computed: recall alone takes a search for the nearest neighbours, all else the
    rankings, in blocks. A CUDA device ranks the embeddings that are on it; those on any other device are ranked on CPU.

    Args:
        query: embeddings.
        query_labels: integers, column 0 the finest level.
        gallery: embeddings, on the device of the queries'.
        gallery_labels: as the queries'.
        metrics: of `METRICS`; "recall" is all of recall@k.
        recall_at: the k of recall@k.
        alpha: exponent of a level's weight in H-AP, (level / L)^alpha.
        count_query: H-AP and sum_wap count the query among its positives when they share a level's weight among
            them, as HAPPIER's release does; its Eq. 4 counts the positives alone.
        level_weights: of sum_wap, a weight for each level of the labels, the finest first; None weighs each 1 / L.
        clustering: False leaves out nmi, ami and f1.
        nmi_average: the mean of the two entropies that NMI and AMI divide by; "geometric" is the other.
        seed: of k-means.
        memory: bytes that the distances of a block of queries may take. A block has at least 32 queries, or as many
            as 2^21 distances for a gallery of more than 65,536.

    Raises:
        InputError: for an unknown metric, lengths, widths or levels that differ, labels that are not integers,
            embeddings that are not finite, a gallery without its labels or they without it, one item with no other,
            or a level at which no query has a positive: a mean over nothing is no result.
    """
    wanted = Wanted(metrics, recall_at, alpha, count_query, level_weights)
    queries, others = checked_items(query, query_labels, gallery, gallery_labels)
    found = rank_items(queries, others, wanted, memory=memory).means()
    if clustering:
        found |= cluster_metrics(queries, metrics, nmi_average, seed)
    return found


def cluster_metrics(items: Items, metrics: Sequence[str], nmi_average: Average, seed: int) -> dict[str, float]:
    """The metrics of clusters among `metrics`, at every level."""
    measures = {
        "nmi": lambda assignment, labels: nmi(assignment, labels, nmi_average),
        "ami": lambda assignment, labels: ami(assignment, labels, nmi_average),
        "f1": pair_f1,
    }
    asked = {name: measure for name, measure in measures.items() if name in metrics}
    found: dict[str, float] = {}
    for level in range(items.labels.shape[1] if asked else 0):
        labels = items.labels[:, level]
        assignment = kmeans(items.embeddings, len(np.unique(labels)), seed)
        found |= {f"level{level}/{name}": measure(assignment, labels) for name, measure in asked.items()}
    return found
