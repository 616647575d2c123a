"""Evaluation of embeddings: of two arrays, or of the rows of an image table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch import Tensor

from dml.data.table import ImageTable
from dml.evaluation.items import (
    BenchmarkList,
    Items,
    Labels,
    benchmark_lists,
    check_copies,
    check_query_and_gallery,
    pair_items,
)
from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, Kind, MetricConfig
from dml.evaluation.ranking import PerQuery, rank_items
from dml.metrics.verification import PairVerification
from dml.retrieval.kmeans_clusters import kmeans
from dml.retrieval.rows import Embeddings, UnitEmbeddings
from dml.runtime.errors import InputError, suggest

Metrics = dict[str, float]


def evaluate(
    query: Embeddings,
    query_labels: Labels,
    gallery: Embeddings | None = None,
    gallery_labels: Labels | None = None,
    **settings: Any,
) -> Metrics:
    """Compute retrieval and clustering metrics of embeddings, at each level. -> {metric: fraction}

    Items are ranked by cosine similarity in float32, whatever the length of their embeddings; a zero embedding has
    cosine 0 to all. Ties stand in the order of the gallery; equal embeddings always tie. Without a gallery the queries
    are their own gallery, and each query is excluded from its ranking by its index. At level i the positives of a query
    are the gallery items with its label in column i; for the hierarchical metrics the level of an item is the number of
    labels that it shares with the query, whether or not the labels form a tree. A metric is a mean over the queries
    that have a positive.

    - level{i}/recall@{k}, ap, map@r, r_precision, and on request trapezoid_ap, mmp5: `dml.metrics.binary`; AP is over
      the whole ranking.
    - level{i}/map@{k} and mp@{k}, if `metrics` names them: `dml.metrics.binary.map_at_k`, `mp_at_k`.
    - h_ap, ndcg, asi: `dml.metrics.graded`, over the whole ranking.
    - sum_wap, only if `metrics` names it: the sum of the levels' AP of each query, weighted by `level_weights`
      (HAPPIER's weighted sum), computed as the H-AP that it is.
    - level{i}/queries_without_positives: how many queries have no positive at the level; without "level{i}/", how
      many share no level with any item.
    - level{i}/nmi, ami, f1: k-means of the queries' unit embeddings into as many clusters as they have labels at
      the level. All queries count; the gallery does not.
    - level{i}/eer, fnmr@1e-2, fnmr@1e-3, fnmr@1e-4, opis, only if `metrics` names them: how well a threshold on the
      similarity tells pairs of one class from others (`dml.metrics.verification`).

    Embeddings are ranked in blocks, on their CUDA device or else on CPU.

    >>> import numpy as np
    >>> metrics = evaluate(np.eye(4)[[0, 0, 1, 1, 2, 2]], np.array([0, 0, 1, 1, 2, 2]), recall_at=(1, 2))
    >>> metrics["level0/recall@1"], metrics["level0/nmi"]
    (1.0, 1.0)

    Args:
        query: embeddings (Q, D).
        query_labels: (Q,) or (Q, L) integers, column 0 the finest level.
        gallery: embeddings (G, D) on the device of the queries' embeddings.
        gallery_labels: (G,) or (G, L) integers.
        **settings: fields of `dml.evaluation.MetricConfig`, such as metrics=("recall", "nmi"), recall_at=(1, 2, 4, 8),
            alpha=1.0, clustering=True or seed=0.

    No query with a positive at some level is an `InputError`, because a mean over no query is no result, and so is a
    gallery that holds each query under another row, with an equal vector and finest label (some get a warning).
    """
    for name in settings.keys() - (known := {setting.name for setting in fields(MetricConfig)}):
        raise InputError(f"{name}: no such setting{suggest(name, known)}")
    config = MetricConfig(**settings)
    queries, items = check_query_and_gallery(query, query_labels, gallery, gallery_labels)
    if items is not None and not config.exclude_nearest:
        check_copies(queries, items, "leave them out of it, or call evaluate(query, query_labels) without a gallery")
    ranked, cluster_metrics = _rank_and_cluster(queries, items, config)
    return ranked.compute_means() | cluster_metrics


def evaluate_table(embeddings: Embeddings, table: ImageTable, **settings: Any) -> Metrics:
    """Compute the metrics of embeddings (N, D) of a table of N rows by fields of `MetricConfig`, see `Evaluator`."""
    return Evaluator(table, MetricConfig(**settings))(embeddings)


class Evaluation(NamedTuple):
    """The metrics of an evaluation, and those of the queries of each benchmark list, in rows of the table."""

    lists: list[PerQuery]
    metrics: Metrics


@dataclass(frozen=True)
class Evaluator:
    """Evaluates embeddings of the rows of a table.

    - Rows of one split are their own gallery. A query excludes itself, and the other parts of its image.
    - Rows of "query" search those of "gallery". A query excludes its pairs in `ImageTable.excluded`, and the
      gallery's copies of its image, which are rows of the same content under other names (`ImageTable.content`).
    - Rows that are evaluated at level b alone (`ImageTable.benchmark`) are a separate list, in which an item is a
      positive or not. All metrics of the list are named level{b}/..., the hierarchical ones too, and mean/... is the
      mean of each metric over the levels (HAPPIER's protocol for DyML). Rows of every level are in each of these lists.

    On several processes, each of which has all embeddings, each process ranks a share of the queries, and the first
    one alone clusters; every process gets the result that a single process would have.
    """

    table: ImageTable
    config: MetricConfig = field(default_factory=MetricConfig)

    def __call__(self, embeddings: Embeddings | UnitEmbeddings, rows: Tensor | None = None) -> Metrics:
        """Return the metrics alone, see `evaluate`."""
        return self.evaluate(embeddings, rows).metrics

    @cached_property
    def benchmark_lists(self) -> list[BenchmarkList]:
        """The lists of the table: which queries search which gallery."""
        return list(benchmark_lists(self.table))

    def check_copies(self, embeddings: UnitEmbeddings, remedy: str) -> None:
        """Check that queries aren't in their gallery under another row, see `dml.evaluation.items.check_copies`."""
        items = Items(embeddings.rows, self.table.labels)
        for part in self.benchmark_lists:
            queries, gallery = part.split_items(items)
            if gallery is not None and not self.config.exclude_nearest:
                check_copies(queries, gallery, remedy)

    def evaluate(
        self,
        embeddings: Embeddings | UnitEmbeddings,
        rows: Tensor | None = None,
        *,
        neighbors: int = 0,
        reranking: str | None = None,
    ) -> Evaluation:
        """Rank and cluster embeddings (N, D) of the ``rows`` (N,) of the table, None being all of them.

        Each query also gets its nearest ``neighbors``. `dml.retrieval.reranking` has the names of re-rankings.
        """
        if rows is not None and not np.array_equal(rows, np.arange(len(self.table))):
            evaluator = replace(self, table=self.table.take(rows.numpy()))
            return evaluator.evaluate(embeddings, neighbors=neighbors, reranking=reranking)
        if len(embeddings) != len(self.table):
            raise InputError(f"{len(embeddings)} embeddings for a table of {len(self.table)} rows")
        items = Items(UnitEmbeddings.normalize(embeddings).rows, self.table.labels)
        share = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
        options: dict[str, Any] = {"share": share, "neighbors": neighbors, "reranking": reranking}
        lists, ranking_metrics, cluster_metrics = list[PerQuery](), Metrics(), Metrics()
        for part in self.benchmark_lists:
            ranked, clusters = _rank_and_cluster(
                *part.split_items(items), self.config, excluded=part.excluded, **options
            )
            ranked = replace(
                ranked,
                queries=part.queries[ranked.queries],
                values={part.metric_name(name): values for name, values in ranked.values.items()},
                has_positive={part.level_name(level): values for level, values in ranked.has_positive.items()},
                neighbors=part.searched[ranked.neighbors],
            )
            lists.append(ranked)
            ranking_metrics |= ranked.compute_means()
            cluster_metrics |= {part.metric_name(name): value for name, value in clusters.items()}
        metrics = ranking_metrics | cluster_metrics
        return Evaluation(lists, metrics | (_level_means(metrics) if self.table.has_level_lists else {}))


def _rank_and_cluster(
    queries: Items,
    gallery: Items | None,
    config: MetricConfig,
    *,
    share: tuple[int, int] = (0, 1),
    excluded: npt.NDArray[np.int64] | None = None,
    **options: Any,
) -> tuple[PerQuery, Metrics]:
    """Rank a gallery for queries, cluster these and evaluate pairs, at each level -> rankings, other metrics."""
    ranked = rank_items(queries, gallery, config, share=share, excluded=excluded, **options)
    rank, world = share
    others: Metrics = {}
    of_clusters, of_pairs = config.select_kind(Kind.CLUSTERS), config.select_kind(Kind.PAIRS)
    for level, labels in enumerate(queries.labels.T if rank == 0 and len(queries.labels) else ()):
        if of_clusters:
            clusters = kmeans(queries.embeddings, len(np.unique(labels)), config.seed)
            others |= {f"level{level}/{row.name}": float(row.function(clusters, labels, config)) for row in of_clusters}
        if of_pairs:
            verification = PairVerification(pair_items(queries, gallery, excluded, level))
            others |= {f"level{level}/{row.name}": float(row.function(verification)) for row in of_pairs}
    if world > 1:
        shares: list[Any] = [None] * world
        dist.all_gather_object(shares, (ranked, others))
        ranked, others = PerQuery.join([part for part, _ in shares]), shares[0][1]
    return ranked, others


def _level_means(metrics: Mapping[str, float]) -> Metrics:
    """Return the mean of each metric over the levels, without the counts: level0/ap, level1/ap, ... -> mean/ap."""
    values_by_name: dict[str, list[float]] = {}
    for metric, value in metrics.items():
        name = metric.rpartition("/")[2]
        if name != QUERIES_WITHOUT_POSITIVES:
            values_by_name.setdefault(name, []).append(value)
    return {f"mean/{name}": float(np.mean(values)) for name, values in values_by_name.items()}
