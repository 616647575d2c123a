"""The names of metrics, such as ``heads/L+M/level0/recall@1``."""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.benchmark_lists import has_level_lists
from dml.evaluation.metric import QUERIES_WITHOUT_POSITIVES, Kind, Metric
from dml.evaluation.metric_config import METRICS_BY_NAME, MetricConfig

HEADS = "heads"
"""The first part of a metric's name if the metric is not computed of all heads together."""

PCA = "pca"
"""The first part of the name of a metric of raw features after a PCA: pca/level0/recall@1."""

RERANKED = "reranked"
"""The first part of the name of a metric of a re-ranking: reranked/dba+alpha_qe/level0/recall@1."""

RERANKING_LABELS = {"alpha_qe": "alpha-QE", "dba": "DBA", "k_reciprocal": "k-reciprocal"}
"""The labels of the steps of re-rankings by name."""

JOINT = "+"
"""The character between the names of heads whose embeddings are concatenated."""


def is_joint_metric(name: str, value: Any) -> bool:
    """Return whether an entry of metrics.json is a metric of all heads together: no count, no step, no raw/...."""
    scope, _, metric = name.rpartition("/")
    in_scope = scope in ("", "mean") or re.fullmatch(r"level\d+", scope) is not None
    return in_scope and isinstance(value, float) and metric != QUERIES_WITHOUT_POSITIVES


def choose_shown_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics of the finest level, or of all levels together, that fit a line: recall at one k alone."""
    by_family: dict[str, str] = {}
    for name in names:
        if name.rpartition("/")[0] in ("", "level0") and not name.endswith(QUERIES_WITHOUT_POSITIVES):
            by_family.setdefault(MetricName.parse(name).family, name)
    return [*by_family.values()]


def join_head_names(heads: Iterable[str]) -> str:
    """Return the name of some heads whose embeddings are concatenated: ["L", "M"] -> "L+M"."""
    return JOINT.join(heads)


def split_head_names(name: str) -> list[str]:
    """Return the heads in a name that `join_head_names` made: "L+M" -> ["L", "M"]."""
    return name.split(JOINT)


def format_heads(name: str) -> str:
    """Return the label of joined names of heads in a table: "L" -> "head L", "L+M" -> "heads L, M"."""
    heads = split_head_names(name)
    return f"head{'s' * (len(heads) > 1)} {', '.join(heads)}"


def format_chosen_heads(chosen: str | None) -> str | None:
    """Return the label of the heads that a training chose: "M+H" -> "chosen: M, H"; None -> None."""
    return f"chosen: {', '.join(split_head_names(chosen))}" if chosen else None


def find_head_sets(metrics: Iterable[str]) -> list[str]:
    """Return the joined names of each set of heads for which there are metrics; a single head is a set too."""
    return list(dict.fromkeys(heads for name in metrics if (heads := MetricName.parse(name).heads)))


def find_rerankings(metrics: Iterable[str]) -> list[str]:
    """Return the name of each re-ranking for which there are metrics, such as "dba+alpha_qe"."""
    parts = (name.split("/", 2) for name in metrics)
    return list(dict.fromkeys(part[1] for part in parts if part[0] == RERANKED and len(part) == 3))


def format_reranking(name: str) -> str:
    """Return the label of a re-ranking in a table: "dba+alpha_qe" -> "+ DBA, alpha-QE"."""
    return f"+ {', '.join(RERANKING_LABELS.get(step, step) for step in name.split('+'))}"


@dataclass(frozen=True)
class MetricName:
    """A metric's name in its parts.

    Args:
        heads: joined names of the evaluated heads; "" stands for all heads together.
        metric: name without the heads, such as "level0/recall@1", "mean/ap" or "h_ap".
    """

    heads: str
    metric: str

    @classmethod
    def parse(cls, name: str) -> "MetricName":
        """Split a name: "heads/L+M/level0/ap" is "level0/ap" of the heads "L+M"."""
        prefix, _, rest = name.partition("/")
        heads, _, metric = rest.partition("/")
        return cls(heads, metric) if prefix == HEADS else cls("", name)

    @property
    def family(self) -> str:
        """The metric's name in ``evaluation.metrics``: "recall" for level0/recall@1."""
        return self._at_k[1] if self._at_k else self.metric.rpartition("/")[2]

    @property
    def k(self) -> int | None:
        """The k of a metric at k, such as recall@k; None for another metric."""
        return int(self._at_k[2]) if self._at_k else None

    @property
    def _at_k(self) -> re.Match[str] | None:
        return re.fullmatch(r"(.+)@([1-9]\d*)", self.metric.rpartition("/")[2])


def full_metric_name(name: str, custom: Container[str] = ()) -> str:
    """Return a metric's name with its level, the finest if it names none.

    >>> full_metric_name("recall@1"), full_metric_name("heads/H/nmi"), full_metric_name("h_ap")
    ('level0/recall@1', 'heads/H/level0/nmi', 'h_ap')

    Args:
        name: name of a metric; one that is unknown is returned as it is.
        custom: names of the user's metrics that have a value for each level.
    """
    prefix, slash, metric = name.rpartition("/")
    families = {metric, metric.partition("@")[0]}
    described = [METRICS_BY_NAME[family] for family in families if family in METRICS_BY_NAME]
    is_of_level = any(row.kind != Kind.HIERARCHY for row in described) or any(family in custom for family in families)
    has_level = re.fullmatch(r"level\d+|mean", prefix.rpartition("/")[2]) is not None
    return f"{prefix}{slash}level0/{metric}" if is_of_level and not has_level else name


def metric_names(table: ImageTable, config: MetricConfig) -> list[str]:
    """Return the names of all metrics that an evaluation of a table can compute.

    These are the packaged metrics and the custom metrics of the configuration, the metrics at k for each configured k.

    Args:
        table: the rows of one evaluation.
        config: settings and custom metrics of the evaluation.
    """
    metrics = {**METRICS_BY_NAME, **{metric.name: metric for metric in config.selected}}.values()
    level_metrics = [name for metric in metrics for name in _names_at_a_level(metric, config.recall_at)]
    hierarchical = [metric.name for metric in metrics if metric.kind == Kind.HIERARCHY]
    if has_level_lists(table):  # the list of a level has hierarchical metrics, too
        levels = sorted({*table.benchmark.tolist()} - {EVERY_LEVEL})
        scopes = [*(f"level{level}" for level in levels), "mean"]
        return [f"{scope}/{metric}" for scope in scopes for metric in (*level_metrics, *hierarchical)]
    return [*(f"level{level}/{name}" for level in range(len(table.levels)) for name in level_metrics), *hierarchical]


def _names_at_a_level(metric: Metric, ks: Sequence[int]) -> list[str]:
    if metric.kind == Kind.HIERARCHY:
        return []
    return [f"{metric.name}@{k}" for k in ks] if metric.kind == Kind.AT_K else [metric.name]
