"""The ranking metrics of some queries."""

from collections.abc import Iterator

from torch import Tensor

from dml.evaluation.metric import Kind
from dml.evaluation.metric_config import MetricConfig
from dml.evaluation.ranking.rankings import Rankings
from dml.metrics.binary import count_positives


def compute_scores(rankings: Rankings, config: MetricConfig) -> dict[str, Tensor]:
    """Compute the ranking metrics of some queries.

    Returns:
        {metric: (Q,) float64}; the value of a query without positives means nothing.
    """
    return dict(_level_scores(rankings, config)) | dict(_hierarchy_scores(rankings, config))


def _level_scores(rankings: Rankings, config: MetricConfig) -> Iterator[tuple[str, Tensor]]:
    for level, ranks in enumerate(rankings.by_level):
        counts = count_positives(ranks)
        for name, function in config.level_functions.items():
            yield f"level{level}/{name}", function(ranks, counts)


def _hierarchy_scores(rankings: Rankings, config: MetricConfig) -> Iterator[tuple[str, Tensor]]:
    if metrics := config.select_kind(Kind.HIERARCHY):
        counts = rankings.by_shared_levels.counts.double()
        counts[:, -1] += config.count_query
        for metric in metrics:
            yield metric.name, metric.compute_joint_values(rankings.by_shared_levels, counts, config)
