from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from dml.evaluation.ranked import Ranked
from dml.metrics.binary import average_precision, map_at_r, r_precision, recall_at_k
from dml.metrics.graded import asi, h_ap, ndcg, numbers_of
from dml.ops.errors import InputError
from dml.ops.relevance import power_relevance, weighted_ap_relevance

BINARY: dict[str, Callable[[Tensor], Tensor]] = {
    "ap": average_precision,
    "map@r": map_at_r,
    "r_precision": r_precision,
}
GRADED = ("h_ap", "ndcg", "asi")
CLUSTERING = ("nmi", "ami", "f1")
METRICS = ("recall", *BINARY, *GRADED, *CLUSTERING)
ON_REQUEST = ("sum_wap",)


@dataclass(frozen=True)
class Wanted:
    """The metrics to compute, of `METRICS`, and their parameters.

    Args:
        metrics: their names, or those of `ON_REQUEST`; "recall" stands for recall@k at every k of `recall_at`.
        recall_at: of recall.
        alpha: of H-AP's relevance, `power_relevance`.
        count_query: a query is one of its own items when the relevance shares a level's weight among them. So
            HAPPIER's release counts; its Eq. 4 doesn't.
        level_weights: of sum_wap, a weight for each level, the finest first; None weighs all levels alike.

    Raises:
        InputError: for an unknown metric or a k below 1.
    """

    metrics: Sequence[str]
    recall_at: Sequence[int]
    alpha: float
    count_query: bool
    level_weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        known = (*METRICS, *ON_REQUEST)
        unknown = [name for name in self.metrics if name not in known]
        if unknown:
            raise InputError(f"metrics = {unknown[0]!r}: expected some of {', '.join(known)}")
        if self.recalls and min(self.recall_at) < 1:
            raise InputError(f"recall_at = {tuple(self.recall_at)}: every k must be at least 1")

    @property
    def recalls(self) -> tuple[int, ...]:
        """The k of recall@k."""
        return tuple(self.recall_at) if "recall" in self.metrics else ()

    @property
    def binary(self) -> tuple[str, ...]:
        """What is computed at each level, by name."""
        return (*(f"recall@{k}" for k in self.recalls), *(name for name in BINARY if name in self.metrics))

    @property
    def graded(self) -> tuple[str, ...]:
        """What is computed of all levels together, by name."""
        return tuple(name for name in (*GRADED, *ON_REQUEST) if name in self.metrics)

    @property
    def recall_alone(self) -> bool:
        """Whether the nearest neighbours are enough."""
        return not self.graded and len(self.binary) == len(self.recalls)


def scores(ranked: Ranked, wanted: Wanted) -> dict[str, Tensor]:
    """The wanted metrics of some queries. -> {name: (Q,) float64}; whatever where a query has no positive"""
    return dict(_binary(ranked, wanted)) | dict(_graded(ranked, wanted))


def _binary(ranked: Ranked, wanted: Wanted) -> Iterator[tuple[str, Tensor]]:
    for level, ranks in enumerate(ranked.at):
        for k in wanted.recalls:
            yield f"level{level}/recall@{k}", recall_at_k(ranks, k)
        for name in BINARY:
            if name in wanted.metrics:
                yield f"level{level}/{name}", BINARY[name](ranks)


def _graded(ranked: Ranked, wanted: Wanted) -> Iterator[tuple[str, Tensor]]:
    counts = numbers_of(ranked.sharing).double()
    counts[:, -1] += wanted.count_query
    if "h_ap" in wanted.metrics:
        yield "h_ap", h_ap(ranked.sharing, power_relevance(counts, wanted.alpha))
    if "sum_wap" in wanted.metrics:
        yield "sum_wap", h_ap(ranked.sharing, weighted_ap_relevance(counts, wanted.level_weights))
    if "ndcg" in wanted.metrics:
        yield "ndcg", ndcg(ranked.sharing)
    if "asi" in wanted.metrics:
        yield "asi", asi(ranked.sharing)
