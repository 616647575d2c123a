"""Evaluation of the lists that a table asks for: against itself, queries against a gallery, or one list a level."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dml.data.table import EVERY_LEVEL, ImageTable
from dml.evaluation.exclusions import same_contents
from dml.evaluation.protocol import evaluate
from dml.evaluation.queries import PerQuery, rank_queries
from dml.evaluation.scores import CLUSTERING, METRICS
from dml.metrics.clustering import Average
from dml.ops.errors import InputError
from dml.retrieval.rows import Embeddings

Rows = npt.NDArray[np.int64]


def evaluate_table(
    embeddings: Embeddings,
    table: ImageTable,
    *,
    metrics: Sequence[str] = METRICS,
    clustering: bool = True,
    nmi_average: Average = "arithmetic",
    seed: int = 0,
    **settings: Any,
) -> dict[str, float]:
    """The metrics of `dml.evaluation.evaluate` of a table whose rows are one evaluation. (N, D) -> {metric: fraction}

    - rows of one split are their own gallery;
    - rows of "query" look for those of "gallery", of which a query excludes the rows with its own `ImageTable.content`:
      itself under other names;
    - rows judged at level b alone (`ImageTable.benchmark`) are a list of their own, in either way, in which an item is
      a positive or not: all its metrics are level{b}/..., the graded ones too, and mean/... is the plain mean of each
      over the levels (HAPPIER's protocol for DyML). Rows of every level are in each of these lists.

    Args:
        embeddings: of the rows.
        table: N rows.
        metrics: as the following, of `evaluate`.
        clustering: False leaves out nmi, ami and f1.
        nmi_average: of nmi and ami.
        seed: of k-means.
        settings: of `rank_queries`.

    Raises:
        InputError: for other splits or another number of rows, and as `evaluate`.
    """
    ranked = rank_table(embeddings, table, metrics=metrics, **settings)
    clusters = list_clusters(embeddings, table, metrics, nmi_average, seed) if clustering else {}
    return list_metrics(ranked, table, clusters)


def list_metrics(ranked: Sequence[PerQuery], table: ImageTable, clusters: Mapping[str, float]) -> dict[str, float]:
    """Put the metrics of `evaluate_table` together.

    Args:
        ranked: what `rank_table` gave for the table, of all queries.
        table: N rows.
        clusters: what `list_clusters` gave for it; empty without nmi, ami and f1.
    """
    found: dict[str, float] = {}
    for part in ranked:
        found |= part.means()
    found |= clusters
    return found | _means(found) if (table.benchmark != EVERY_LEVEL).any() else found


def list_clusters(
    embeddings: Embeddings,
    table: ImageTable,
    metrics: Sequence[str] = CLUSTERING,
    nmi_average: Average = "arithmetic",
    seed: int = 0,
) -> dict[str, float]:
    """Compute the metrics of k-means' clusters for each of the table's lists.

    Args:
        embeddings: (N, D).
        table: N rows.
        metrics: the wanted ones of nmi, ami and f1; other names are passed over.
        nmi_average: of nmi and ami.
        seed: of k-means.
    """
    wanted = [name for name in metrics if name in CLUSTERING]
    clusters: dict[str, float] = {}
    for listed in _parts(table) if wanted else ():
        queries, labels = embeddings[listed.queries], listed.labels(table, listed.queries)
        of_list = evaluate(queries, labels, metrics=wanted, nmi_average=nmi_average, seed=seed)
        clusters |= {listed.name(metric): value for metric, value in of_list.items()}
    return clusters


def rank_table(embeddings: Embeddings, table: ImageTable, **settings: Any) -> list[PerQuery]:
    """The lists of `evaluate_table` query by query; `queries` and `neighbors` are rows of the table.

    Args:
        embeddings: (N, D).
        table: N rows.
        settings: of `rank_queries`. With a `share`, that of each list.

    Raises:
        InputError: as `evaluate_table`, but not for queries without positives.
    """
    if len(embeddings) != len(table):
        raise InputError(f"{len(embeddings)} embeddings for a table of {len(table)} rows")
    return [_ranked(embeddings, table, part, settings) for part in _parts(table)]


class _Part(NamedTuple):
    """A list: rows of the table, and the one level that it is judged at or `EVERY_LEVEL`."""

    queries: Rows
    gallery: Rows | None
    level: int

    def labels(self, table: ImageTable, rows: Rows) -> npt.NDArray[np.int64]:
        return table.labels[rows] if self.level == EVERY_LEVEL else table.labels[rows, self.level]

    def name(self, metric: str) -> str:
        return metric if self.level == EVERY_LEVEL else f"level{self.level}/{metric.rpartition('/')[2]}"


def _parts(table: ImageTable) -> Iterator[_Part]:
    splits = {str(split) for split in np.unique(table.split)}
    paired = splits == {"query", "gallery"}
    if not paired and (len(splits) != 1 or splits & {"query", "gallery", ""}):
        raise InputError(f"evaluation of the splits {sorted(splits)}: expected query and gallery, or one of the others")
    for level in sorted({*table.benchmark.tolist()} - {EVERY_LEVEL}) or [EVERY_LEVEL]:
        inside = np.isin(table.benchmark, (EVERY_LEVEL, level))
        if paired:
            queries, gallery = (np.flatnonzero(inside & (table.split == split)) for split in ("query", "gallery"))
            yield _Part(queries, gallery, level)
        else:
            yield _Part(np.flatnonzero(inside), None, level)


def _ranked(embeddings: Embeddings, table: ImageTable, part: _Part, settings: dict[str, Any]) -> PerQuery:
    given = [embeddings[part.queries], part.labels(table, part.queries)]
    if part.gallery is not None:
        given += [embeddings[part.gallery], part.labels(table, part.gallery)]
        settings = settings | {"excluded": same_contents(table.content[part.queries], table.content[part.gallery])}
    ranked = rank_queries(*given, **settings)
    gallery = part.queries if part.gallery is None else part.gallery
    return replace(
        ranked,
        queries=part.queries[ranked.queries],
        values={part.name(metric): values for metric, values in ranked.values.items()},
        neighbors=gallery[ranked.neighbors],
    )


def _means(found: dict[str, float]) -> dict[str, float]:
    """mean/... of level0/..., level1/..., of all but counts."""
    by_name: dict[str, list[float]] = {}
    for metric, value in found.items():
        name = metric.rpartition("/")[2]
        if name != "queries_without_positives":
            by_name.setdefault(name, []).append(value)
    return {f"mean/{name}": float(np.mean(values)) for name, values in by_name.items()}
