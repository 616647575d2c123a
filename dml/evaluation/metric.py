"""What a metric is: its input, its function, and how tables show it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from dml.ops.errors import InputError

QUERIES_WITHOUT_POSITIVES = "queries_without_positives"
"""The end of the names of counts in metrics.json, such as level0/queries_without_positives."""

RESERVED_NAMES = (
    *(QUERIES_WITHOUT_POSITIVES, "images_skipped", "queries_in_gallery", "configuration", "checksums"),
    *("epoch", "step", "selection", "vector", "chosen_heads", "split", "device", "pruned"),
    *("path", "labels", "neighbors", "neighbor_labels", "similarities", "map_x", "map_y"),
)
"""The names of other values in metrics.json, and of the columns of per_query.parquet that are not metrics."""


class Kind(StrEnum):
    """The input of a metric, which decides the arguments of its function."""

    AT_K = "at_k"
    """One value for each level and each k of ``recall_at``: ``function(ranks, k)`` -> (Q,).

    Like recall@k, the metric may depend on the rank of the nearest positive alone: a search for the nearest neighbours
    finds no other rank. ``ranks`` is (Q, 1) then, and may be longer in other evaluations.
    """
    WITHIN_R = "within_r"
    """One value for each level: ``function(ranks, counts)`` -> (Q,).

    ``ranks`` (Q, P) are as for `LEVEL`, and ``counts`` (Q,) is the number R of each query's positives. Like MAP@R, the
    metric may depend on the ranks up to R alone: where R is small, a search for the nearest neighbours finds no others.
    """
    LEVEL = "level"
    """One value for each level: ``function(ranks)`` -> (Q,).

    ``ranks`` (Q, P) float64 are the rising ranks of each query's positives, from 1 and padded with infinity.
    """
    HIERARCHY = "hierarchy"
    """One value over all levels: ``function(ranks_by_level, counts, config)`` -> (Q,).

    ``ranks_by_level`` are L tensors of ranks, see `dml.metrics.graded`; ``counts`` (Q, L + 1) float64 is the number of
    items that share 0, 1, ... L levels with the query, as `dml.ops.relevance` takes it; ``config`` is the
    `MetricConfig`.
    """
    CLUSTERS = "clusters"
    """One value for each level: ``function(assignment, labels, config)`` -> float.

    ``assignment`` (N,) are the clusters of k-means, ``labels`` (N,) those of the level.
    """
    PAIRS = "pairs"
    """One value for each level: ``function(verification)`` -> float.

    ``verification`` is a `dml.metrics.pair_verification.PairVerification` of all pairs of two queries, or of a query
    and an item of the gallery.
    """


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

    Raises:
        InputError: if the kind is unknown, or the name could be mistaken for other parts of a name in metrics.json.
    """

    name: str
    label: str
    kind: Kind
    function: Callable[..., Any]
    higher_is_better: bool = True
    is_default: bool = True
    shown_in_percent: bool = True

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", Kind(self.kind))  # a YAML file gives the kind as a string
        except ValueError:
            raise InputError(f"metric {self.name}: kind = {self.kind!r}, expected one of {', '.join(Kind)}") from None
        if not self.name or "/" in self.name or re.search(r"@\d+$", self.name) or self.name in RESERVED_NAMES:
            raise InputError(
                f"metric {self.name!r}: a name must not be empty, hold a /, end in @ and a number, or be one of "
                f"{', '.join(RESERVED_NAMES)}"
            )

    def compute_values(self, ranks: Tensor, *arguments: Any) -> Tensor:
        """Return the value of each query (Q,) of a ranking metric, by the function's arguments with ranks (Q, P) first.

        Raises:
            InputError: if the function returns anything else.
        """
        return self._check_values(self.function(ranks, *arguments), len(ranks))

    def compute_joint_values(self, ranks_by_level: Sequence[Tensor], *arguments: Any) -> Tensor:
        """Return the value of each query (Q,) of a `Kind.HIERARCHY` metric.

        Raises:
            InputError: if the function returns anything else.
        """
        return self._check_values(self.function(ranks_by_level, *arguments), len(ranks_by_level[0]))

    def _check_values(self, values: Any, num_queries: int) -> Tensor:
        if not isinstance(values, Tensor) or values.shape != (num_queries,):
            returned = f"a tensor {(*values.shape,)}" if isinstance(values, Tensor) else repr(type(values).__name__)
            raise InputError(
                f"metric {self.name}: its function returned {returned} for {num_queries} queries; expected a tensor "
                f"({num_queries},), one value for each query"
            )
        return values

    def compute_value(self, *arguments: Any) -> float:
        """Return the one value of a metric of clusters or pairs.

        Raises:
            InputError: if the function returns anything but a number.
        """
        value = self.function(*arguments)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"metric {self.name}: its function returned {type(value).__name__!r}; expected one number"
            ) from error
