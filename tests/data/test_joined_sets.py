"""Several tables in one: classes never meet, hierarchies stay trees, and protocols stay those of each table."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dml.data.joined_sets import join_tables
from dml.data.readers import digits, emoji
from dml.data.table import UNKNOWN, ImageTable, find_faults


def make(prefix: str, labels: list[list[int]], levels: tuple[str, ...], split: str = "train", **columns: Any) -> Any:
    return ImageTable(
        paths=np.array([f"{prefix}{row}.jpg" for row in range(len(labels))]),
        labels=np.array(labels),
        split=np.array(columns.pop("splits", [split] * len(labels))),
        levels=levels,
        source=f"/{prefix}",
        **columns,
    )


BIRDS = make(
    "b", [[0, 0], [1, 0], [2, 1], [2, 1]], ("species", "family"), names=(("tit", "jay", "owl"), ("song", "prey"))
)
CARS = make("c", [[1], [0], [1]], ("model",), splits=["query", "gallery", "gallery"], excluded=np.array([[0, 2]]))
LISTS = make("l", [[0, UNKNOWN], [UNKNOWN, 0]], ("kind", "family"), "test", benchmark=np.array([0, 1]))


def test_classes_are_numbered_and_named_by_their_data_set() -> None:
    joined = join_tables({"birds": BIRDS, "cars": CARS, "lists": LISTS})
    assert joined.labels.tolist() == [
        *([0, 0], [1, 0], [2, 1], [2, 1]),
        *([4, 3], [3, 2], [4, 3]),  # the only level of cars, twice
        *([5, UNKNOWN], [UNKNOWN, 4]),
    ]
    assert joined.names == (
        ("birds/tit", "birds/jay", "birds/owl", "cars/0", "cars/1", "lists/0"),
        ("birds/song", "birds/prey", "cars/0", "cars/1", "lists/0"),
    )
    assert joined.levels == ("level0", "family")  # the second is that of all data sets that have it
    assert joined.domain.tolist() == ["birds"] * 4 + ["cars"] * 3 + ["lists"] * 2
    assert joined.domains == ("birds", "cars", "lists")
    assert joined.benchmark.tolist() == [-1] * 7 + [0, 1]
    assert joined.excluded.tolist() == [[4, 6]]
    assert joined.split.tolist() == ["train"] * 4 + ["query", "gallery", "gallery"] + ["test"] * 2
    assert joined.source == "birds: /b, cars: /c, lists: /l"


def test_a_joined_table_is_joined_again_under_longer_names() -> None:
    inner = join_tables({"birds": BIRDS, "cars": CARS})
    assert join_tables({"x": inner, "birds": BIRDS}).domains == ("x/birds", "x/cars", "birds")


@pytest.mark.parametrize("order", [("emoji", "digits"), ("digits", "emoji")])
def test_hierarchies_stay_trees_and_no_label_is_missing(order: tuple[str, str], tmp_path: Any) -> None:
    tables = {"emoji": emoji.read(None), "digits": digits.read(tmp_path)}
    joined = join_tables({name: tables[name] for name in order})
    assert not [*find_faults(joined, disjoint=False)]
    assert joined.is_tree
    for name, table in tables.items():
        rows = joined.domain == name
        for level in range(3):
            own = table.labels[:, min(level, table.labels.shape[1] - 1)]
            shift = joined.labels[rows, level] - own
            assert len({*shift.tolist()}) == 1
            assert not np.intersect1d(joined.labels[rows, level], joined.labels[~rows, level]).size


def test_take_and_renumber_keep_the_column() -> None:
    joined = join_tables({"birds": BIRDS, "cars": CARS})
    part = joined.take(np.array([6, 1])).renumber()
    assert part.domain.tolist() == ["cars", "birds"]
    assert part.domains == ("cars", "birds")
    assert part.labels.tolist() == [[1, 1], [0, 0]]


def test_boxes_and_what_they_exclude_stay_those_of_a_table() -> None:
    paths = np.array(["a.jpg#0,0,4,4", "a.jpg#2,2,8,8", "b.jpg"])
    parts = replace(make("p", [[0], [1], [1]], ("label",)), paths=paths)
    parts = replace(parts, content=np.empty(0, dtype=np.int64))
    joined = join_tables({"parts": parts, "whole": make("w", [[0], [0]], ("label",))})
    assert joined.paths.tolist() == ["a.jpg#0,0,4,4", "a.jpg#2,2,8,8", "b.jpg", "w0.jpg", "w1.jpg"]
    assert joined.content.tolist() == [0, 0, 1, -1, -1]  # parts of one image exclude each other
