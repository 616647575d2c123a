from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml.evaluation import rank_queries
from dml.evaluation.per_query import COLUMNS, QueryTable, read_queries, write_queries
from dml.runtime.errors import InputError

pytest_plugins = ("report_runs",)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return bool(a == b)


def with_gaps(table: QueryTable) -> QueryTable:
    """Some queries without positives, some not on the map."""
    assert table.positions is not None
    metrics, positions = dict(table.metrics), table.positions.copy()
    metrics["level0/ap"] = np.where(np.arange(24) % 5, metrics["level0/ap"], np.nan)
    positions[3] = np.nan
    return replace(table, metrics=metrics, positions=positions)


def test_what_is_written_is_read(table: QueryTable, tmp_path: Path) -> None:
    table = with_gaps(table)
    write_queries(tmp_path / "q.parquet", table)
    found = read_queries(tmp_path / "q.parquet")
    assert len(found) == 24
    for field in fields(QueryTable):
        assert same(getattr(table, field.name), getattr(found, field.name)), field.name


def test_nothing_but_what_is_needed(table: QueryTable, tmp_path: Path) -> None:
    bare = replace(table, names=(), positions=None, metrics={}, made_with={})
    write_queries(tmp_path / "q.parquet", bare)
    found = read_queries(tmp_path / "q.parquet")
    assert found.positions is None
    assert found.names == ()
    assert found.metrics == {}
    assert found.class_name(3) == "shape 3"
    assert found.class_name(-1, 1) == "unknown"


def test_the_file_is_plain_parquet(table: QueryTable, tmp_path: Path) -> None:
    write_queries(tmp_path / "q.parquet", with_gaps(table))
    columns = pq.read_table(tmp_path / "q.parquet")
    row = columns.slice(6, 1).to_pylist()[0]
    assert row["path"] == table.paths[6]
    assert row["labels"] == [1, 0]
    assert row["neighbors"] == table.neighbors[6].tolist()
    assert row["neighbor_labels"] == table.neighbor_labels[6].tolist()
    assert row["similarities"] == pytest.approx(table.similarities[6].tolist())
    assert row["level0/recall@1"] == table.metrics["level0/recall@1"][6]
    types = {name: columns.schema.field(name).type for name in columns.column_names}
    assert types["level0/ap"] == pa.float64()
    assert types["similarities"] == pa.list_(pa.field("element", pa.float32()))
    assert columns["level0/ap"].null_count == 5
    assert columns["map_x"].null_count == columns["map_y"].null_count == 1


def test_the_same_table_gives_the_same_bytes(table: QueryTable, tmp_path: Path) -> None:
    for name in "ab":
        write_queries(tmp_path / name, with_gaps(table))
    write_queries(tmp_path / "c", read_queries(tmp_path / "a"))
    assert len({(tmp_path / name).read_bytes() for name in "abc"}) == 1


def test_neighbors_are_looked_up_in_the_gallery() -> None:
    rng = np.random.default_rng(0)
    queries, gallery, labels = rng.normal(size=(4, 3)), rng.normal(size=(6, 3)), np.array([[0], [1], [0], [1]])
    paths, others = [f"q{i}" for i in range(4)], [f"g{i}" for i in range(6)]
    gallery_labels = np.arange(6)[:, None] % 2
    table = QueryTable.from_rankings(
        rank_queries(queries, labels, gallery, gallery_labels, neighbors=2),
        paths,
        labels,
        gallery_paths=others,
        gallery_labels=gallery_labels,
        levels=("thing",),
    )
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, gallery)]
    for i in range(4):
        nearest = sorted(range(6), key=lambda j: -float(unit[0][i] @ unit[1][j]))[:2]
        assert table.neighbors[i].tolist() == [f"g{j}" for j in nearest]
        assert table.neighbor_labels[i, :, 0].tolist() == [j % 2 for j in nearest]
        assert table.similarities[i] == pytest.approx([unit[0][i] @ unit[1][j] for j in nearest], abs=1e-6)


def test_a_file_that_cannot_be_read_is_one_line(table: QueryTable, tmp_path: Path) -> None:
    path = tmp_path / "q.parquet"
    write_queries(path, table)
    whole = pq.read_table(path)
    faults = {name: whole.drop_columns([name]) for name in COLUMNS}
    faults |= {"metadata": whole.replace_schema_metadata(None), "queries": whole.slice(0, 0)}
    for fault in faults.values():
        pq.write_table(fault, path)
        with pytest.raises(InputError, match=r"q\.parquet: not a file of queries"):
            read_queries(path)
    path.write_text("no parquet")
    with pytest.raises(InputError, match=r"q\.parquet: not a file of queries"):
        read_queries(path)
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        read_queries(path)


def test_intervals_are_over_the_finest_classes_that_all_queries_have(table: QueryTable) -> None:
    assert (table.labels[:, 0] == 0).any()
    assert table.level_of_classes("level0/ap") == 0
    coarse = table.labels.copy()
    coarse[0, 0] = -1  # a list of a coarse level has queries without a finer class
    assert replace(table, labels=coarse).level_of_classes("level0/ap") == 1
