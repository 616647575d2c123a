"""What a metric is, the table of metrics, their names such as heads/L+M/level0/recall@1, and which are computed."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.metrics.binary import (
    average_precision,
    map_at_k,
    map_at_r,
    mmp_at_5,
    mp_at_k,
    r_precision,
    recall_at_k,
    trapezoid_ap,
)
from dml.metrics.clustering import Average, ami, nmi, pair_f1
from dml.metrics.graded import asi, h_ap, ndcg
from dml.metrics.verification import REPORTED_FMRS, PairVerification, equal_error_rate, fnmr_at_fmr, opis
from dml.ops.relevance import power_relevance, weighted_ap_relevance
from dml.runtime.errors import InputError, check_choice, check_number, check_whole

QUERIES_WITHOUT_POSITIVES = "queries_without_positives"
"""The end of the names of counts in metrics.json, such as level0/queries_without_positives."""

COUNTS = (QUERIES_WITHOUT_POSITIVES, "images_skipped", "queries_in_gallery")
"""The ends of the names of numbers in metrics.json that are no metrics."""

RESERVED_NAMES = (
    *(*COUNTS, "configuration", "epoch", "step", "selection", "vector", "chosen_heads", "split", "device"),
    *("path", "labels", "neighbors", "neighbor_labels", "similarities", "map_x", "map_y"),
)
"""The names of other values in metrics.json, and of the columns of per_query.parquet that are not metrics."""


HEADS, PCA, RERANKED = "heads", "pca", "reranked"
"""The first part of the name of a metric of some heads alone (heads/L+M/level0/ap), of raw features after a PCA, and of
a re-ranking (reranked/alpha_qe/level0/recall@1).
"""


class Kind(StrEnum):
    """The input of a metric, which decides the arguments of its function."""

    AT_K = "at_k"
    """``function(ranks, k)`` -> (Q,), for each level and each k of ``recall_at``.

    Like recall@k, the metric may depend on the rank of the nearest positive alone: a search for the nearest neighbors
    finds no other rank. ``ranks`` is (Q, 1) then, and may be longer in other evaluations.
    """
    WITHIN_R = "within_r"
    """``function(ranks, counts)`` -> (Q,), for each level.

    ``ranks`` (Q, P) are as for `LEVEL`, and ``counts`` (Q,) is the number R of each query's positives. Like MAP@R, the
    metric may depend on the ranks up to R alone: where R is small, a search for the nearest neighbors finds no others.
    """
    LEVEL = "level"
    """``function(ranks)`` -> (Q,), for each level, of the rising ranks (Q, P) float64 of each query's positives, from 1
    and padded with infinity.
    """
    HIERARCHY = "hierarchy"
    """``function(ranks_by_level, counts, config)`` -> (Q,), over all levels.

    ``ranks_by_level`` are L tensors of ranks, see `dml.metrics.graded`; ``counts`` (Q, L + 1) float64 is the number of
    items that share 0, 1, ... L levels with the query, as `dml.ops.relevance` takes it; ``config`` is the
    `MetricConfig`.
    """
    CLUSTERS = "clusters"
    """``function(assignment, labels, config)`` -> float, for each level: clusters (N,) of k-means, and labels (N,)."""
    PAIRS = "pairs"
    """``function(verification)`` -> float, for each level, of the `dml.metrics.verification.PairVerification` of all
    pairs of two queries, or of a query and an item of the gallery.
    """


OF_RANKS = (Kind.AT_K, Kind.WITHIN_R, Kind.LEVEL, Kind.HIERARCHY)
"""The kinds of metrics that the ranks of the positives decide."""


@dataclass(frozen=True)
class Metric:
    """A metric: a row of `METRICS`, or a custom one, which a user defines.

    Args:
        name: name of the metric in ``evaluation.metrics`` and, behind a level and before an @k, in metrics.json.
        label: name of the metric in tables, reports and comparisons.
        kind: input of the metric, a `Kind` or its value, such as "level".
        function: function of the arguments that the kind names; a ranking metric gives one value for each query.
        higher_is_better: whether a larger value is the better one.
        is_default: whether an evaluation computes the metric unless ``metrics`` names others.
        shown_in_percent: whether tables show 0.5 as 50.0; False for values that are no fractions, such as ranks.
    """

    name: str
    label: str
    kind: Kind
    function: Callable[..., Any]
    higher_is_better: bool = True
    is_default: bool = True
    shown_in_percent: bool = True

    def __post_init__(self) -> None:
        check_choice(f"metric {self.name}: kind", self.kind, [*Kind])
        object.__setattr__(self, "kind", Kind(self.kind))  # a YAML file gives the kind as a string
        has_k = re.search(r"(?<!^map)(?<!^mp)@\d+$", self.name)
        if not self.name or "/" in self.name or has_k or self.name in RESERVED_NAMES:
            raise InputError(
                f"metric {self.name!r}: a name must not be empty, hold a /, end in @ and a number, or be one of "
                f"{', '.join(RESERVED_NAMES)}"
            )

    def compute_values(self, num_queries: int, *arguments: Any) -> Tensor:
        """Return the value of each query (Q,) of a ranking metric, by the function's arguments."""
        values: Any = self.function(*arguments)
        if not isinstance(values, Tensor) or values.shape != (num_queries,):
            returned = f"a tensor {(*values.shape,)}" if isinstance(values, Tensor) else repr(type(values).__name__)
            raise InputError(
                f"metric {self.name}: its function returned {returned} for {num_queries} queries; expected a tensor "
                f"({num_queries},), one value for each query"
            )
        return values


def _fnmr_at(verification: PairVerification, fmr: float) -> float:
    return fnmr_at_fmr(verification.rates, fmr)


_of_pairs = partial(Metric, kind=Kind.PAIRS, higher_is_better=False, is_default=False)

METRICS = (
    Metric("recall", "R", Kind.AT_K, recall_at_k),
    Metric("ap", "AP", Kind.LEVEL, average_precision),
    Metric("map@r", "MAP@R", Kind.WITHIN_R, map_at_r),
    Metric("r_precision", "R-prec.", Kind.WITHIN_R, r_precision),
    Metric("trapezoid_ap", "AP (trapezoid)", Kind.LEVEL, trapezoid_ap, is_default=False),
    Metric("mmp5", "mMP@5", Kind.WITHIN_R, mmp_at_5, is_default=False),
    Metric("h_ap", "H-AP", Kind.HIERARCHY, lambda ranks, n, config: h_ap(ranks, power_relevance(n, config.alpha))),
    Metric("ndcg", "NDCG", Kind.HIERARCHY, lambda ranks, *_: ndcg(ranks)),
    Metric("asi", "ASI", Kind.HIERARCHY, lambda ranks, *_: asi(ranks)),
    Metric(
        "sum_wap",
        "sum wAP",
        Kind.HIERARCHY,
        lambda ranks, counts, config: h_ap(ranks, weighted_ap_relevance(counts, config.level_weights)),
        is_default=False,
    ),
    Metric("nmi", "NMI", Kind.CLUSTERS, lambda clusters, labels, config: nmi(clusters, labels, config.nmi_average)),
    Metric("ami", "AMI", Kind.CLUSTERS, lambda clusters, labels, config: ami(clusters, labels, config.nmi_average)),
    Metric("f1", "F1", Kind.CLUSTERS, lambda clusters, labels, _: pair_f1(clusters, labels)),
    _of_pairs("eer", "EER", function=lambda given: equal_error_rate(given.rates)),
    *(
        _of_pairs(f"fnmr@{rate}", f"FNMR@{rate}", function=partial(_fnmr_at, fmr=fmr))
        for fmr, rate in zip(REPORTED_FMRS, ("1e-2", "1e-3", "1e-4"), strict=True)
    ),
    _of_pairs("opis", "OPIS", function=lambda given: opis(given.pairs, given.rates), shown_in_percent=False),
)
"""The metrics that ship with the package, in the order in which tables show them."""

METRICS_BY_NAME = {metric.name: metric for metric in METRICS}
DEFAULT_METRICS = tuple(metric.name for metric in METRICS if metric.is_default)


def find_packaged(name: str) -> Metric | None:
    """Return the metric of a name of `METRICS`, or of map@ or mp@ and any k, as map@1000; None if there is none."""
    if named := re.fullmatch(r"(map|mp)@([1-9]\d*)", name):
        label, function = {"map": ("mAP", map_at_k), "mp": ("mP", mp_at_k)}[named[1]]
        return Metric(name, f"{label}@{named[2]}", Kind.LEVEL, partial(function, k=int(named[2])), is_default=False)
    return METRICS_BY_NAME.get(name)


@dataclass(frozen=True)
class MetricName:
    """A metric's name in its parts: joined names of heads, "" for all heads together, and the name without them."""

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
        return self._family_and_k[0]

    @property
    def k(self) -> int | None:
        """The k of a metric at k, such as recall@k; None for another metric."""
        return self._family_and_k[1]

    @property
    def _family_and_k(self) -> tuple[str, int | None]:
        name = self.metric.rpartition("/")[2]
        at_k = re.fullmatch(r"(?!map@|mp@)(.+)@([1-9]\d*)", name)
        return (at_k[1], int(at_k[2])) if at_k else (name, None)


def full_metric_name(name: str, custom: Container[str] = ()) -> str:
    """Return a metric's name with its level, the finest if it names none; an unknown name is returned as it is.

    >>> full_metric_name("recall@1"), full_metric_name("heads/H/nmi"), full_metric_name("h_ap")
    ('level0/recall@1', 'heads/H/level0/nmi', 'h_ap')
    """
    prefix, slash, metric = name.rpartition("/")
    families = {metric, metric.partition("@")[0]}
    described = [row for family in families if (row := find_packaged(family))]
    is_of_level = any(row.kind != Kind.HIERARCHY for row in described) or any(family in custom for family in families)
    has_level = re.fullmatch(r"level\d+|mean", prefix.rpartition("/")[2]) is not None
    return f"{prefix}{slash}level0/{metric}" if is_of_level and not has_level else name


@dataclass(frozen=True)
class MetricConfig:
    """Which metrics an evaluation computes, and how.

    Args:
        metrics: names of packaged metrics, see `find_packaged`, and `Metric` objects, which are custom metrics.
        recall_at: every k at which recall@k is computed.
        alpha: exponent of the weight (level / levels) ** alpha that H-AP gives a level of the hierarchy.
        count_query: whether H-AP and sum_wap count the query among its positives when the positives of a level share
            the weight of that level, as HAPPIER's release does; its Eq. 4 counts the positives alone.
        level_weights: the weight of each level in sum_wap, the finest level first; None weighs all levels alike.
        exclude_nearest: whether a query excludes its nearest item, whatever that is, instead of itself, as HAPPIER's
            release does.
        clustering: False skips the metrics of clusters, even if `metrics` names them.
        nmi_average: the mean of the two entropies that NMI and AMI divide by: "arithmetic" or "geometric".
        seed: seed of k-means.
        memory: bytes that the distances of one block of queries may take. A block has at least 64 queries, or as many
            as 2^23 distances if the gallery has more than 131,072 items. Rankings of all items on a GPU take 4 times
            as much, or an eighth of its memory if that is more.
    """

    metrics: Sequence[str | Metric] = DEFAULT_METRICS
    recall_at: Sequence[int] = (1, 2, 4, 8)
    alpha: float = 1.0
    count_query: bool = False
    level_weights: Sequence[float] | None = None
    exclude_nearest: bool = False
    clustering: bool = True
    nmi_average: Average = "arithmetic"
    seed: int = 0
    memory: int = 2**29

    def __post_init__(self) -> None:
        if fault := self._find_fault():
            raise InputError(f"metrics{fault}")
        check_number("alpha", self.alpha)
        check_whole("seed", self.seed, least=0)
        weights = () if self.level_weights is None else self.level_weights
        for weight in weights:
            check_number("level_weights", weight, least=0)
        if self.level_weights is not None and not any(weights):
            raise InputError(f"level_weights = {list(weights)}: at least one must be above 0")
        if self.select_kind(Kind.AT_K):
            for k in self.recall_at:
                check_whole("recall_at", k, least=1)

    def _find_fault(self) -> str:
        """Tell of an entry that is neither a metric nor the name of one, or of a name that several have."""
        for entry in self.metrics:
            if not isinstance(entry, Metric) and (not isinstance(entry, str) or find_packaged(entry) is None):
                return (
                    f" = {entry!r}: expected a list of {', '.join(METRICS_BY_NAME)}, map@K, mp@K (recall_at has the k "
                    "of recall), and metrics of your own with _target_: dml.evaluation.Metric"
                )
        if taken := METRICS_BY_NAME.keys() & {metric.name for metric in self.custom}:
            return f": {taken.pop()} is a packaged metric; give yours another name"
        names = [metric.name for metric in self.selected]
        repeated = sorted({name for name in names if names.count(name) > 1})
        return f": two metrics are named {repeated[0]}" if repeated else ""

    def check_labels(self) -> None:
        """Make sure that labels, by which tables and reports name the metrics, tell them apart."""
        metric_by_label: dict[str, Metric] = {}
        for metric in self.selected:
            other = metric_by_label.setdefault(metric.label, metric)
            if other is not metric:
                raise InputError(f"metrics: {other.name} and {metric.name} have the label {metric.label}; change one")

    @property
    def custom(self) -> tuple[Metric, ...]:
        """The custom metrics: `Metric` objects that are not packaged."""
        return tuple(metric for metric in self.metrics if isinstance(metric, Metric) and metric not in METRICS)

    @cached_property
    def selected(self) -> tuple[Metric, ...]:
        """The metrics to compute: the packaged ones in the order of `METRICS`, then the custom ones."""
        names = {entry: find_packaged(entry) for entry in self.metrics if isinstance(entry, str)}
        packaged = (metric for metric in (METRICS_BY_NAME | names).values() if metric and metric.name in names)
        metrics = (*packaged, *(metric for metric in self.metrics if isinstance(metric, Metric)))
        return tuple(metric for metric in metrics if self.clustering or metric.kind != Kind.CLUSTERS)

    def find_metric(self, name: str) -> Metric | None:
        """Return the packaged or custom metric of a name; None if there is none."""
        return {metric.name: metric for metric in self.custom}.get(name) or find_packaged(name)

    def select_kind(self, *kinds: Kind) -> tuple[Metric, ...]:
        """Return the selected metrics of some kinds."""
        return tuple(metric for metric in self.selected if metric.kind in kinds)

    def compute_level(self, ranks: Tensor, counts: Tensor, *kinds: Kind) -> Iterator[tuple[str, Tensor]]:
        """Yield name and values (Q,) of each metric of one level, of some kinds, from ranks (Q, P) and counts (Q,)."""
        for metric in self.select_kind(*kinds):
            if metric.kind == Kind.AT_K:
                for k in self.recall_at:
                    yield f"{metric.name}@{k}", metric.compute_values(len(ranks), ranks, k)
            else:
                arguments = (ranks, counts) if metric.kind == Kind.WITHIN_R else (ranks,)
                yield metric.name, metric.compute_values(len(ranks), *arguments)

    @property
    def largest_k(self) -> int:
        """The largest k of the metrics at k; 0 without such a metric."""
        return int(max(self.recall_at, default=0)) if self.select_kind(Kind.AT_K) else 0

    def ranking_names(self, levels: int) -> Iterator[str]:
        """Yield the names in metrics.json of all ranking metrics, for labels (N, L) with ``levels`` = L."""
        names = [f"{metric.name}@{k}" for metric in self.select_kind(Kind.AT_K) for k in self.recall_at]
        names += [metric.name for metric in self.select_kind(Kind.WITHIN_R, Kind.LEVEL)]
        yield from (f"level{level}/{name}" for level in range(levels) for name in names)
        yield from (metric.name for metric in self.select_kind(Kind.HIERARCHY))


def metric_names(table: ImageTable, config: MetricConfig) -> list[str]:
    """Return the names of all metrics, packaged and custom, that an evaluation of a table can compute."""
    by_level, over_levels = list[str](), list[str]()
    for metric in {**METRICS_BY_NAME, **{metric.name: metric for metric in config.selected}}.values():
        at_k = [f"{metric.name}@{k}" for k in config.recall_at] if metric.kind == Kind.AT_K else [metric.name]
        (over_levels if metric.kind == Kind.HIERARCHY else by_level).extend(at_k)
    if table.has_level_lists:  # the list of a level has hierarchical metrics, too
        levels = sorted({*table.benchmark.tolist()} - {EVERY_LEVEL})
        scopes = [*(f"level{level}" for level in levels), "mean"]
        return [f"{scope}/{name}" for scope in scopes for name in (*by_level, *over_levels)]
    return [*(f"level{level}/{name}" for level in range(len(table.levels)) for name in by_level), *over_levels]


JOINT = "+"
"""The character between the names of heads whose embeddings are concatenated."""


def join_head_names(heads: Iterable[str]) -> str:
    """Return the name of some heads whose embeddings are concatenated: ["L", "M"] -> "L+M"."""
    return JOINT.join(heads)


def split_head_names(name: str) -> list[str]:
    """Return the heads in a name that `join_head_names` made: "L+M" -> ["L", "M"]."""
    return name.split(JOINT)


def select_joint(names: Iterable[str]) -> list[str]:
    """Return the names, each once, that stand for several heads, whose embeddings are concatenated."""
    return [name for name in dict.fromkeys(names) if JOINT in name]


def are_heads(names: Sequence[str], heads: Iterable[str]) -> bool:
    """Return whether some names are those of heads, each once."""
    return len({*names} & {*heads}) == len(names)


def list_evaluated_heads(heads: Iterable[str], alone: bool, head_sets: Any) -> list[str]:
    """Return the names of what a test evaluates: each head if ``alone``, and ``evaluation.head_sets``."""
    heads, head_sets = list(heads), head_sets or []
    for head_set in head_sets:
        names = list(head_set) if isinstance(head_set, Sequence) and not isinstance(head_set, str) else []
        if not names or not are_heads(names, heads):
            raise InputError(
                f"evaluation.head_sets={head_sets}: expected lists of some of the heads {', '.join(heads)}, each once, "
                f"such as [[{','.join(heads[:2])}]]"
            )
    return list(dict.fromkeys([*(heads if alone else []), *map(join_head_names, head_sets)]))
