"""The names of metrics, such as ``heads/L+M/level0/recall@1``."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.scores import BINARY, CLUSTERING, GRADED, ON_REQUEST

HEADS = "heads"
JOINT = "+"

SHORT_NAMES = {
    "ap": "AP",
    "map@r": "MAP@R",
    "r_precision": "R-prec.",
    "nmi": "NMI",
    "ami": "AMI",
    "f1": "F1",
    "h_ap": "H-AP",
    "ndcg": "NDCG",
    "asi": "ASI",
}


def short(metric: str) -> str:
    """What heads a column: level0/recall@1 -> R@1."""
    name = metric.rpartition("/")[2]
    return SHORT_NAMES.get(name, name.replace("recall@", "R@"))


def set_name(heads: Iterable[str]) -> str:
    """The name of some heads whose embeddings are concatenated: ["L", "M"] -> "L+M"."""
    return JOINT.join(heads)


def heads_of(name: str) -> list[str]:
    """The heads of a `set_name`: "L+M" -> ["L", "M"]."""
    return name.split(JOINT)


def head_label(name: str) -> str:
    """What a `set_name` is called in a table: "head L" or "heads L, M"."""
    heads = heads_of(name)
    return f"head{'s' * (len(heads) > 1)} {', '.join(heads)}"


def head_sets_in(metrics: Iterable[str]) -> list[str]:
    """The `set_name` of all heads and sets of heads that metrics were computed for, each once."""
    return list(dict.fromkeys(heads for name in metrics if (heads := MetricName.parse(name).heads)))


@dataclass(frozen=True)
class MetricName:
    """A metric's name in its parts.

    Args:
        heads: the `set_name` of the heads that are evaluated, "" for all heads together.
        metric: the rest of the name, such as "level0/recall@1", "mean/ap" or "h_ap".
    """

    heads: str
    metric: str

    @classmethod
    def parse(cls, name: str) -> "MetricName":
        """Take a name apart: "heads/L+M/level0/ap" is "level0/ap" of the heads "L+M"."""
        prefix, _, rest = name.partition("/")
        heads, _, metric = rest.partition("/")
        return cls(heads, metric) if prefix == HEADS else cls("", name)

    @property
    def family(self) -> str:
        """The name that evaluation.metrics knows it by: "recall" for level0/recall@1."""
        return "recall" if self.k else self.metric.rpartition("/")[2]

    @property
    def k(self) -> int | None:
        """The k of recall@k; None for another metric."""
        matched = re.fullmatch(r"recall@([1-9]\d*)", self.metric.rpartition("/")[2])
        return int(matched[1]) if matched else None


def metric_names(table: ImageTable, recall_at: Sequence[int]) -> list[str]:
    """The names of all metrics that an evaluation of the table's rows can compute, recall at the given k."""
    level_metrics = [*(f"recall@{k}" for k in recall_at), *BINARY, *CLUSTERING]
    graded_metrics = [*GRADED, *ON_REQUEST]
    listed = sorted({*table.benchmark.tolist()} - {EVERY_LEVEL})
    if listed:  # each level has a list of its own, in which the graded metrics are those of this level
        scopes = [*(f"level{level}" for level in listed), "mean"]
        return [f"{scope}/{metric}" for scope in scopes for metric in (*level_metrics, *graded_metrics)]
    levels = range(len(table.levels))
    return [*(f"level{level}/{metric}" for level in levels for metric in level_metrics), *graded_metrics]
