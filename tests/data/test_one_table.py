"""A frame, the CSV file and the Parquet file that pandas writes of it are one table."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dml
from dml.data.readers import folder
from dml.data.readers.csv import read
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

PATHS = [f"{row}.jpg" for row in range(4)]
SPLIT = ["train", "train", "test", "test"]
DAYS = ["2020-01-01", "2020-01-01", "1999-12-31", "2021-01-01"]
NO_LABELS = [
    ["a", None, "b", "b"],
    ["a", np.nan, "b", "b"],
    ["a", pd.NA, "b", "b"],
    ["a", "", "b", "b"],
    ["a", " ", "b", "b"],
    [6.0, None, 7, 7],
    [True, None, False, False],
    pd.array([6, None, 7, 7], dtype="Int64"),
    pd.array(["a", None, "b", "b"], dtype="string"),
    pd.array([True, None, False, False], dtype="boolean"),
    pd.Categorical(["a", None, "b", "b"]),
    pd.Categorical([6, None, 7, 7]),
    pd.to_datetime([DAYS[0], None, *DAYS[2:]]),
]
"""Labels, of which that of the second row is missing."""


def from_frame(frame: pd.DataFrame, place: Path) -> ImageTable:
    return dml.ImageTable.from_frame(frame)


def from_csv(frame: pd.DataFrame, place: Path) -> ImageTable:
    frame.to_csv(place / "mine.csv", index=False)
    return read(place / "mine.csv", test_fraction=None)


def from_parquet(frame: pd.DataFrame, place: Path) -> ImageTable:
    frame.to_parquet(place / "mine.parquet")
    return read(place / "mine.parquet", test_fraction=None)


Source = Callable[[pd.DataFrame, Path], ImageTable]


@pytest.fixture(params=[from_frame, from_csv, from_parquet], ids=lambda source: source.__name__)
def source(request: pytest.FixtureRequest) -> Source:
    return request.param


def make_frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"path": PATHS, "label": ["a", "a", "b", "b"], "split": SPLIT} | columns)


def names_of(table: ImageTable) -> list[str]:
    return [table.name_class(label) for label in table.labels[:, 0].tolist()]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["a ", " a", "b", "b\t"], "a a b b"),
        (["Zoe\u0308", "Zo\u00eb", "b", "b"], "Zo\u00eb Zo\u00eb b b"),
        ([6, 6, 10, 7], "6 6 10 7"),
        ([6.0, 6, 10, -7], "6 6 10 -7"),
        ([6.0, 6, 7.5, 7], "6.0 6.0 7.5 7.0"),
        (pd.array([6, 6, 10, 7], dtype="Int64"), "6 6 10 7"),
        (["007", "08", "0", "1.10"], "007 08 0 1.10"),
        (["6.0", "7.0", "8.0", "8.0"], "6 7 8 8"),
        (["6.0", "7.1", "8.0", "8.0"], "6.0 7.1 8.0 8.0"),
        ([True, True, False, True], "True True False True"),
        (pd.array([True, True, False, True], dtype="boolean"), "True True False True"),
        (pd.Categorical(["b", "b", "a", "a"], categories=["z", "b", "a"]), "b b a a"),
        (pd.Categorical([7, 7, 10, 10]), "7 7 10 10"),
        (pd.array(["b", "b", "a", "a"], dtype="string"), "b b a a"),
        (pd.to_datetime(DAYS), " ".join(DAYS)),
        ([pd.Timestamp(day).date() for day in DAYS], " ".join(DAYS)),
        (["a, b", 'a "b"', "c;d", "e\nf"], None),
        (["None", "nan", "NaN", "NA"], "None nan NaN NA"),
    ],
)
def test_cells_are_the_same_classes(labels: Any, names: str | None, source: Source, tmp_path: Path) -> None:
    table = source(make_frame(label=labels), tmp_path)
    assert names_of(table) == ([*labels] if names is None else names.split(" "))
    assert table.names == (tuple(sorted({*names_of(table)})),)
    assert [path.removeprefix(f"{tmp_path}/") for path in table.paths.tolist()] == PATHS
    assert table.levels == ("label",)
    assert table.split.tolist() == SPLIT


def test_times_of_a_day_stay(source: Source, tmp_path: Path) -> None:
    times = ["2020-01-01 00:00:00", "2020-01-01 00:00:00", "2020-01-01 12:30:00", "2020-01-02 00:00:00"]
    assert names_of(source(make_frame(label=pd.to_datetime(times)), tmp_path)) == times


@pytest.mark.parametrize(
    ("name", "cells", "splits"),
    [
        ("split", ["Train", "TRAIN ", "validation", "Testing"], "train train val test"),
        ("split", pd.Categorical(["train", "train", "gallery", "query"]), "train train gallery query"),
        ("subset", ["training", "dev", "test", "test"], "train val test test"),
        ("Usage", ["Training", "Training", "PublicTest", "PrivateTest"], "train train val test"),
        ("is_valid", [True, False, True, False], "val train val train"),
        ("is_valid", [1, 0, 1, 0], "val train val train"),
        ("is_test", [1.0, None, 1.0, 0.0], "test train test train"),
        ("is_train", [True, None, False, True], "train test test train"),
    ],
)
def test_columns_that_say_the_split(name: str, cells: Any, splits: str, source: Source, tmp_path: Path) -> None:
    frame = make_frame().drop(columns="split").assign(**{name: cells})
    assert source(frame, tmp_path).split.tolist() == splits.split()


def test_levels_are_in_the_order_of_their_numbers(source: Source, tmp_path: Path) -> None:
    numbers = [10, 2, 9, 1, 8, 3, 7, 4, 6, 5, 0]
    levels = {f"level{level}": [f"{level} of {row // (level + 1)}" for row in range(4)] for level in numbers}
    table = source(pd.DataFrame({"path": PATHS, "split": SPLIT} | levels), tmp_path)
    assert table.levels == tuple(f"level{level}" for level in range(11))
    assert [names[0] for names in table.names] == [f"{level} of 0" for level in range(11)]


def test_empty_rows_and_other_columns_are_passed_over(source: Source, tmp_path: Path) -> None:
    frame = pd.DataFrame({"path": ["a.jpg", None, "b.jpg"], "label": [1, None, 2], "split": ["train", None, "test"]})
    table = source(frame.assign(weight=[0.5, None, None], when=pd.NaT), tmp_path)
    assert names_of(table) == ["1", "2"]
    assert table.split.tolist() == ["train", "test"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        *(({"label": labels}, r"(row 1|line 3): an empty cell in the column label") for labels in NO_LABELS),
        ({"path": ["0.jpg", None, "2.jpg", "3.jpg"]}, r"(row 1|line 3): an empty cell in the column path"),
        ({"split": ["train", None, "test", "test"]}, r"(row 1|line 3): an empty cell in the column split"),
        ({"split": ["train", "seen", "test", "test"]}, r"(row 1|line 3): unknown split 'seen'; the splits are train"),
        *(
            ({"path": ["0.jpg", path, "2.jpg", "3.jpg"]}, rf"(row 1|line 3): {path} stands in (row 0|line 2) already")
            for path in ("0.jpg", "./0.jpg", "x/../0.jpg")
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(columns: dict[str, Any], message: str, source: Source, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^(table|.*/mine\.(csv|parquet)), {message}"):
        source(make_frame(**columns), tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"label": "lable"}, "unknown column 'lable', is it 'label'"),
        ({"label": "Label"}, "unknown column 'Label', is it 'label'"),
        ({"split": "spilt"}, "unknown column 'spilt', is it 'split'"),
        ({"path": "image", "label": "class"}, "no column 'path' among .*"),
        ({"label": "weight"}, "no column 'label' among 'path', 'weight', 'split'"),
        ({"label": "level1"}, "no column 'level0' among"),
        ({"split": "level0"}, "the columns label and level0; give one of the two"),
    ],
)
def test_columns_with_wrong_names(names: dict[str, str], message: str, source: Source, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^(table|.*/mine\.(csv|parquet), line 1): {message}"):
        source(make_frame().rename(columns=names), tmp_path)


@pytest.mark.parametrize(
    ("labels", "spellings"),
    [
        (["7", "7.0", "007", "8"], "'007' and '7' and '7.0'"),
        (["True", "TRUE", "x", "y"], "'TRUE' and 'True'"),
        (["C0", "c0", "C1", "C1"], "'C0' and 'c0'"),
        (["robin", "robin\u200b", "owl", "owl"], r"'robin' and 'robin\u200b'"),
        (["sea lion", "sea\xa0lion", "owl", "owl"], r"'sea lion' and 'sea\xa0lion'"),
        (["\uff21", "A", "b", "b"], "'A' and '\uff21'"),
        (["Stra\u00dfe", "STRASSE", "b", "b"], "'STRASSE' and 'Stra\u00dfe'"),
    ],
)
def test_spellings_of_one_class_are_named(
    labels: list[str], spellings: str, source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = source(make_frame(label=labels), tmp_path)
    assert names_of(table) == labels
    (message,) = caplog.messages
    assert f"1 class seems to be there in several spellings, each of which counts as a class: {spellings};" in message


def test_other_classes_and_other_levels_are_no_spellings(
    source: Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    levels = {
        "level0": ["cat 1", "cat 10", "1e3", "1000"],
        "level1": ["Cat 1", "Cat 1", "12345678901234567", "12345678901234568"],
    }
    source(pd.DataFrame({"path": PATHS, "split": SPLIT} | levels), tmp_path)
    assert not caplog.messages


def test_folders_of_one_class_in_two_spellings_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train/C0", "train/c0", "test/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.jpg").touch()
    with caplog.at_level(logging.WARNING):
        folder.read(tmp_path)
    (message,) = caplog.messages
    assert "'C0' and 'c0'" in message
