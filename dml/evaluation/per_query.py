"""``per_query.parquet``: what a run scored at each query, and what it found there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dml.evaluation.queries import PerQuery
from dml.ops.errors import InputError
from dml.ops.files import replacing

Strings = npt.NDArray[np.object_]
"""An array of str: of objects, as equal paths then share their memory."""

COLUMNS = ("path", "labels", "neighbors", "neighbor_labels", "similarities", "map_x", "map_y")
"""All columns that are no metric."""
METADATA = b"dml"


@dataclass(frozen=True)
class QueryTable:
    """A row a query; all that a report needs beside the run's metrics.

    Args:
        paths: (Q,) the queries' images.
        labels: (Q, L), level 0 the finest.
        metrics: {name as in metrics.json: (Q,) float64}, NaN where the query has no positive.
        neighbors: (Q, k) the nearest images' paths, nearest first.
        neighbor_labels: (Q, k, L).
        similarities: (Q, k) float32, the neighbours' cosines.
        levels: the L names of the levels.
        names: for each level the names of its classes, indexed by label; empty if the data set has none.
        positions: (Q, 2) float32, the queries' places on the map, NaN for those that are not on it.
        made_with: versions of what computed it, by name.

    Raises:
        InputError: if the columns disagree in length, or the labels with the levels, or there is no query or neighbour.
    """

    paths: Strings
    labels: npt.NDArray[np.int64]
    metrics: Mapping[str, npt.NDArray[np.float64]]
    neighbors: Strings
    neighbor_labels: npt.NDArray[np.int64]
    similarities: npt.NDArray[np.float32]
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...] = ()
    positions: npt.NDArray[np.float32] | None = None
    made_with: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        queries, levels, nearest = len(self.paths), len(self.levels), self.neighbors.shape[-1]
        columns: dict[str, tuple[npt.NDArray[Any], tuple[int, ...]]] = {
            "labels": (self.labels, (queries, levels)),
            **{name: (values, (queries,)) for name, values in self.metrics.items()},
            "neighbors": (self.neighbors, (queries, nearest)),
            "neighbor_labels": (self.neighbor_labels, (queries, nearest, levels)),
            "similarities": (self.similarities, (queries, nearest)),
        }
        if self.positions is not None:
            columns["positions"] = (self.positions, (queries, 2))
        for name, (values, shape) in columns.items():
            if values.shape != shape or 0 in shape:
                raise InputError(f"query table: {name} of shape {values.shape}, expected {shape} and none of them 0")

    def __len__(self) -> int:
        return len(self.paths)

    def class_name(self, label: int, level: int = 0) -> str:
        """The name of a class; "emoji 12" where the data set has none, "unknown" for a label below 0."""
        if label < 0:
            return "unknown"
        return self.names[level][label] if self.names else f"{self.levels[level]} {label}"

    @staticmethod
    def of(
        ranked: PerQuery,
        paths: Sequence[str] | npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        *,
        gallery_paths: Sequence[str] | npt.NDArray[Any] | None = None,
        gallery_labels: npt.NDArray[np.int64] | None = None,
        **described: Any,
    ) -> "QueryTable":
        """The table of what `rank_queries` gave for all queries.

        Args:
            ranked: with neighbours.
            paths: (Q,) of the queries.
            labels: (Q, L) of the queries.
            gallery_paths: (G,); None, as `gallery_labels`, if the queries are their own gallery.
            gallery_labels: (G, L).
            **described: levels, names, positions and made_with, as in `QueryTable`.
        """
        own = gallery_paths is None or gallery_labels is None
        others = np.array(paths if own else gallery_paths, dtype=object)
        return QueryTable(
            paths=np.array(paths, dtype=object),
            labels=labels,
            metrics=ranked.values,
            neighbors=others[ranked.neighbors],
            neighbor_labels=(labels if own else np.asarray(gallery_labels))[ranked.neighbors],
            similarities=ranked.similarities,
            **described,
        )


def write_queries(path: Path, table: QueryTable) -> None:
    """Writes ``per_query.parquet``: the same table gives the same bytes.

    Columns: path, labels (a list), a float64 column a metric, neighbors, neighbor_labels (a list of lists),
    similarities (lists, nearest first), map_x and map_y; null stands for NaN. The levels, the class names and the
    versions are JSON in the file's metadata under "dml".
    """
    positions = np.full((len(table), 2), np.nan, dtype=np.float32) if table.positions is None else table.positions
    columns = {
        "path": pa.array(table.paths, pa.string()),
        "labels": _lists(table.labels),
        **{name: pa.array(values, pa.float64(), from_pandas=True) for name, values in table.metrics.items()},
        "neighbors": _lists(table.neighbors),
        "neighbor_labels": _lists(table.neighbor_labels),
        "similarities": _lists(table.similarities),
        "map_x": pa.array(positions[:, 0], pa.float32(), from_pandas=True),
        "map_y": pa.array(positions[:, 1], pa.float32(), from_pandas=True),
    }
    described = {"levels": table.levels, "names": table.names, "made_with": dict(table.made_with)}
    metadata = {METADATA: json.dumps(described, ensure_ascii=False).encode()}
    with replacing(path) as partial:
        pq.write_table(pa.table(columns, metadata=metadata), partial, compression="zstd")


def _lists(values: npt.NDArray[Any]) -> Any:
    """(A, B, ...) -> A lists of B lists of ..."""
    flat = pa.array(values.reshape(-1), pa.string() if values.dtype == object else None)
    for axis in range(values.ndim - 1, 0, -1):
        length, lists = values.shape[axis], int(np.prod(values.shape[:axis]))
        flat = pa.ListArray.from_arrays(np.arange(lists + 1, dtype=np.int32) * length, flat)
    return flat


def read_queries(path: Path) -> QueryTable:
    """What `write_queries` wrote.

    Raises:
        InputError: if there is no such file, it is none that `write_queries` wrote, or it lacks a column.
    """
    try:
        table = pq.read_table(path, partitioning=None)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; a run writes it when it is tested") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: not a Parquet file that can be read") from error
    if missing := [name for name in COLUMNS if name not in table.column_names]:
        raise InputError(f"{path}: column {missing[0]} is missing; a run writes {', '.join(COLUMNS)}")
    described = _described(table.schema.metadata, path)
    levels = tuple(described["levels"])
    queries = table.num_rows
    if not queries:
        raise InputError(f"{path}: no queries in it")
    neighbors = _values(table, "neighbors", (queries, -1))
    positions = np.stack([table[name].to_numpy() for name in ("map_x", "map_y")], axis=1)
    return QueryTable(
        paths=_shared(table["path"].combine_chunks()),
        labels=_values(table, "labels", (queries, len(levels))),
        metrics={name: table[name].to_numpy() for name in table.column_names if name not in COLUMNS},
        neighbors=neighbors,
        neighbor_labels=_values(table, "neighbor_labels", (*neighbors.shape, len(levels))),
        similarities=_values(table, "similarities", neighbors.shape),
        levels=levels,
        names=tuple(tuple(names) for names in described["names"]),
        positions=None if np.isnan(positions).all() else positions,
        made_with=described["made_with"],
    )


def _described(metadata: Mapping[bytes, bytes] | None, path: Path) -> Any:
    if not metadata or METADATA not in metadata:
        raise InputError(f"{path}: no levels in its metadata; a run writes them")
    return json.loads(metadata[METADATA])


def _values(table: Any, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The values of lists of equal length."""
    flat = table[name].combine_chunks()
    while pa.types.is_list(flat.type):
        flat = flat.flatten()
    values = _shared(flat) if pa.types.is_string(flat.type) else flat.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def _shared(strings: Any) -> Strings:
    """An array of str in which equal ones are one object."""
    encoded = strings.dictionary_encode()
    shared: Strings = np.array(encoded.dictionary.to_pylist(), dtype=object)[encoded.indices.to_numpy()]
    return shared
