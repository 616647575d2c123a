from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from dml.data.table import ImageTable
from dml.evaluation.lists import list_clusters, list_metrics, rank_table
from dml.evaluation.queries import PerQuery
from dml.evaluation.scores import Wanted


@dataclass(frozen=True)
class Judge:
    """Evaluates embeddings of a table's rows as a run asks for it.

    On several processes, each of which has all embeddings, each ranks its share of the queries, and the first alone
    clusters; the result is that of one process, on all of them.

    Args:
        table: what is evaluated: rows of one split, or of query and gallery.
        metrics: of `dml.evaluation.evaluate`.
        recall_at: the k of recall@k.
        alpha: of H-AP.
        count_query: of H-AP and sum_wap.
        level_weights: of sum_wap, a weight for each level, the finest first; None weighs all levels alike.
        exclude_nearest: each query excludes its nearest item, whatever that is, instead of itself.
        clustering: whether nmi, ami and f1, if they are among the metrics, are computed.
        seed: of k-means.

    Raises:
        InputError: for an unknown metric or a k below 1.
    """

    table: ImageTable
    metrics: Sequence[str]
    recall_at: Sequence[int]
    alpha: float = 1.0
    count_query: bool = False
    level_weights: Sequence[float] | None = None
    exclude_nearest: bool = False
    clustering: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        Wanted(self.metrics, self.recall_at, self.alpha, self.count_query)  # refuses unknown metrics before any work

    def __call__(self, embeddings: Tensor, rows: Tensor) -> dict[str, float]:
        """(N, D) and their rows (N,) of the table -> {metric: fraction}."""
        return self.metrics_of(self.rank(embeddings, rows), embeddings, rows)

    def rank(self, embeddings: Tensor, rows: Tensor, neighbors: int = 0) -> list[PerQuery]:
        """The table's lists query by query, as `rank_table` of ``table.take(rows)``."""
        settings: dict[str, Any] = {
            "metrics": self.metrics,
            "recall_at": self.recall_at,
            "alpha": self.alpha,
            "count_query": self.count_query,
            "level_weights": self.level_weights,
            "exclude_nearest": self.exclude_nearest,
            "neighbors": neighbors,
        }
        part = self.table.take(rows.numpy())
        if not _is_distributed():
            return rank_table(embeddings, part, **settings)
        share = (dist.get_rank(), dist.get_world_size())
        own = rank_table(embeddings, part, share=share, **settings)
        everyones: list[Any] = [None] * share[1]
        dist.all_gather_object(everyones, own)
        return [PerQuery.joined(shares) for shares in zip(*everyones, strict=True)]

    def metrics_of(self, ranked: Sequence[PerQuery], embeddings: Tensor, rows: Tensor) -> dict[str, float]:
        """The metrics of what `rank` gave for the same embeddings, clusters among them."""
        part = self.table.take(rows.numpy())
        clusters = {}
        if self.clustering:
            clusters = _on_first_process(lambda: list_clusters(embeddings, part, self.metrics, seed=self.seed))
        return list_metrics(ranked, part, clusters)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _on_first_process(compute: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Compute metrics on the first of several processes, and give them to all."""
    if not _is_distributed():
        return compute()
    shared = [compute() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    metrics: dict[str, float] = shared[0]  # type: ignore[assignment]
    return metrics
