"""The file ``per_query.parquet``: the metrics and the nearest neighbors of each test query."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dml.data.table import ImageTable
from dml.evaluation.ranking import PerQuery
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.reading import parse_json

Floats = npt.NDArray[np.float64]
Strings = npt.NDArray[np.object_]
"""An array of str objects, in which equal strings share their memory."""

COLUMNS = ("path", "labels", "neighbors", "neighbor_labels", "similarities", "map_x", "map_y")
"""The columns that are not metrics."""
METADATA = b"dml"


@dataclass(frozen=True)
class QueryTable:
    """The queries of a test, one in each row, with their metrics and nearest neighbors."""

    paths: Strings  # (Q,) paths of the queries' images
    labels: npt.NDArray[np.int64]  # (Q, L), level 0 the finest
    metrics: Mapping[str, npt.NDArray[np.float64]]  # {name in metrics.json: (Q,)}, NaN without a positive
    neighbors: Strings  # (Q, k) paths of the nearest images, nearest first
    neighbor_labels: npt.NDArray[np.int64]  # (Q, k, L)
    similarities: npt.NDArray[np.float32]  # (Q, k) cosines
    levels: tuple[str, ...]  # names of the L levels
    names: tuple[tuple[str, ...], ...] = ()  # class names of each level, indexed by label; empty without any
    positions: npt.NDArray[np.float32] | None = None  # (Q, 2) places on the map, NaN for queries that are not on it
    made_with: Mapping[str, str] = field(default_factory=dict)  # {library or "platform": version} of the test's machine

    def __len__(self) -> int:
        return len(self.paths)

    def class_name(self, label: int, level: int = 0) -> str:
        """Return the name of a class: "emoji 12" if the classes have no names, "unknown" for a label below 0."""
        if label < 0:
            return "unknown"
        return self.names[level][label] if self.names else f"{self.levels[level]} {label}"

    def level_of_classes(self, metric: str) -> int:
        """Return the finest level at which all queries with a value of a metric have a class, for intervals over these.

        In a benchmark with a list of queries for each level (DyML) that is the level of the list.
        """
        has_class = self.labels[~np.isnan(self.metrics[metric])] >= 0
        return int(np.argmax(has_class.all(axis=0)))

    def find_shared_levels(self, neighbors: int | None = None, levels: slice = slice(None)) -> npt.NDArray[np.int64]:
        """Find the finest of some levels, from 0, at which each nearest image has the class of its query -> (Q, k)."""
        queries = self.labels[:, None, levels]
        is_shared = (queries == self.neighbor_labels[:, :neighbors, levels]) & (queries >= 0)
        shared: npt.NDArray[np.int64] = np.pad(is_shared, ((0, 0), (0, 0), (0, 1)), constant_values=True).argmax(axis=2)
        return shared

    @staticmethod
    def from_rankings(
        ranked: PerQuery,
        paths: Sequence[str] | npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        *,
        gallery_paths: Sequence[str] | npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[np.int64] | None = None,
        **described: Any,
    ) -> "QueryTable":
        """Make the table of the rankings of all queries, which are their own gallery without one."""
        searched_paths = np.array(paths if gallery_paths is None else gallery_paths, dtype=object)
        return QueryTable(
            paths=np.array(paths, dtype=object),
            labels=labels,
            metrics=ranked.values,
            neighbors=searched_paths[ranked.neighbors],
            neighbor_labels=np.asarray(labels if gallery_labels is None else gallery_labels)[ranked.neighbors],
            similarities=ranked.similarities,
            **described,
        )


def join_lists(table: ImageTable, lists: Sequence[PerQuery], neighbors: int, **described: Any) -> QueryTable:
    """Make one table of the queries of all lists of a test; ``described`` is as in `QueryTable.from_rankings`."""
    joined = PerQuery.join(lists)
    nearest = {name: getattr(joined, name)[:, :neighbors] for name in ("neighbors", "similarities")}
    return QueryTable.from_rankings(
        replace(joined, **nearest),
        table.paths[joined.queries],
        table.labels[joined.queries],
        gallery_paths=table.paths,
        gallery_labels=table.labels,
        **described,
    )


def write_queries(path: Path, table: QueryTable) -> None:
    """Write ``per_query.parquet``. The same table gives the same bytes.

    The columns are path, labels (a list), a float64 column for each metric, neighbors, neighbor_labels (a list of
    lists), similarities (a list), map_x and map_y; null stands for NaN. The levels, the class names and the versions
    are JSON in the metadata of the file, under "dml".
    """
    positions = np.full((len(table), 2), np.nan, dtype=np.float32) if table.positions is None else table.positions
    columns = {
        "path": pa.array(table.paths, pa.string()),
        "labels": _to_lists(table.labels),
        **{name: pa.array(values, pa.float64(), from_pandas=True) for name, values in table.metrics.items()},
        "neighbors": _to_lists(table.neighbors),
        "neighbor_labels": _to_lists(table.neighbor_labels),
        "similarities": _to_lists(table.similarities),
        "map_x": pa.array(positions[:, 0], pa.float32(), from_pandas=True),
        "map_y": pa.array(positions[:, 1], pa.float32(), from_pandas=True),
    }
    described = {"levels": table.levels, "names": table.names, "made_with": dict(table.made_with)}
    metadata = {METADATA: json.dumps(described, ensure_ascii=False).encode()}
    with replacing(path) as partial:
        pq.write_table(pa.table(columns, metadata=metadata), partial, compression="zstd", write_page_checksum=True)


def _to_lists(values: npt.NDArray[Any]) -> Any:
    """Convert an array to an Arrow array of nested lists of equal length. (A, B, ...) -> A lists of B lists of ..."""
    flat = pa.array(values.reshape(-1), pa.string() if values.dtype == object else None)
    for axis in range(values.ndim - 1, 0, -1):
        length, lists = values.shape[axis], int(np.prod(values.shape[:axis]))
        flat = pa.ListArray.from_arrays(np.arange(lists + 1, dtype=np.int32) * length, flat)
    return flat


def read_queries(path: Path) -> QueryTable:
    """Read the file that `write_queries` wrote."""
    try:
        return _read(path)
    except PermissionError:
        raise
    except Exception as error:  # Arrow, NumPy and JSON raise many kinds of exceptions for a damaged file
        reason = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        remedy = f"{shlex.quote(f'resume={path.parent}')} tests the run again and writes it anew"
        raise InputError(f"{path}: not a file of queries that can be read ({reason}); {remedy}") from error


def _read(path: Path) -> QueryTable:
    table = pq.read_table(path, partitioning=None, page_checksum_verification=True)
    table.validate(full=True)
    described: Any = parse_json(table.schema.metadata[METADATA])
    queries, levels = table.num_rows, tuple(described["levels"])
    neighbors = _read_column(table, "neighbors", (queries, -1))
    positions = np.stack([table[name].to_numpy() for name in ("map_x", "map_y")], axis=1)
    return QueryTable(
        paths=_read_column(table, "path", (queries,)),
        labels=_read_column(table, "labels", (queries, len(levels))),
        metrics={name: table[name].to_numpy() for name in table.column_names if name not in COLUMNS},
        neighbors=neighbors,
        neighbor_labels=_read_column(table, "neighbor_labels", (*neighbors.shape, len(levels))),
        similarities=_read_column(table, "similarities", neighbors.shape),
        levels=levels,
        names=tuple(tuple(names) for names in described["names"]),
        positions=None if np.isnan(positions).all() else positions,
        made_with=described["made_with"],
    )


def _read_column(table: Any, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a column of nested lists of equal length as an array of some shape; equal strings are one object."""
    flat = table[name].combine_chunks()
    while pa.types.is_list(flat.type):
        flat = flat.flatten()
    if pa.types.is_string(flat.type):
        encoded = flat.dictionary_encode()
        values: npt.NDArray[Any] = np.array(encoded.dictionary.to_pylist(), dtype=object)[encoded.indices.to_numpy()]
    else:
        values = flat.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


class QueryScore(NamedTuple):
    """A score (Q,) by which queries are ordered from worst to best: fractions, NaN for queries without positives."""

    name: str
    values: Floats

    def describe(self, row: int) -> str:
        """Return the score of one query in words, such as "AP 50.0 %"."""
        return f"{self.name} {100 * self.values[row]:.1f} %"


def score_queries(table: QueryTable) -> QueryScore:
    """Score queries by AP at the finest level, or else by 1 / rank of the nearest stored neighbor of their class."""
    if "level0/ap" in table.metrics:
        return QueryScore("AP", table.metrics["level0/ap"])
    is_same = compare_classes(table)
    reciprocal_ranks = np.where(is_same.any(axis=1), 1 / (1 + is_same.argmax(axis=1)), 0.0)
    recalls = table.metrics.get("level0/recall@1", reciprocal_ranks)  # NaN tells a query without positives
    return QueryScore("reciprocal rank", np.where(np.isnan(recalls), np.nan, reciprocal_ranks))


def compare_classes(table: QueryTable) -> npt.NDArray[np.bool_]:
    """Return whether each stored neighbor has the finest class of its query. -> (Q, k)"""
    is_same: npt.NDArray[np.bool_] = table.find_shared_levels(levels=slice(1)) == 0
    return is_same


def choose_lowest(values: Floats, classes: npt.NDArray[np.int64], count: int, seed: int = 0) -> list[int]:
    """Choose up to ``count`` rows of the lowest values (Q,), at most one of each class, equal ones in random order."""
    order = np.lexsort((np.random.default_rng(seed).permutation(len(values)), values))
    order = order[: np.count_nonzero(~np.isnan(values))]
    firsts = np.sort(np.unique(classes[order], return_index=True)[1])[:count]
    chosen: list[int] = order[firsts].tolist()
    return chosen


def describe_first_match(table: QueryTable, row: int) -> str:
    """Return the rank of a query's nearest stored neighbor of its class, in words."""
    is_same = compare_classes(table)[row]
    if is_same.any():
        return f"first match at rank {is_same.argmax() + 1}"
    return f"no match in the first {len(is_same)}"
