"""Class splits: a file gives each class its split, and what can't be applied is one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dml.data.class_splits import apply_class_splits, format_class_splits, read_class_splits
from dml.data.table import ImageTable
from dml.runtime.errors import InputError

NAMES = ("ant", "bee, the", 'a "cat"', "dog")


@pytest.fixture
def table() -> ImageTable:
    """Four classes of two images: two of training, one of validation, one of test; and an image without a split."""
    return ImageTable(
        np.array([f"{row}.png" for row in range(9)]),
        np.array([0, 0, 1, 1, 2, 2, 3, 3, 3])[:, None],
        np.array([*["train"] * 4, "val", "val", "test", "test", ""]),
        ("class",),
        (NAMES,),
    )


def write(folder: Path, splits: dict[str, str]) -> Path:
    file = folder / "splits.csv"
    file.write_text(format_class_splits(splits))
    return file


def test_a_file_gives_each_class_its_split(table: ImageTable, tmp_path: Path) -> None:
    splits = dict(zip(NAMES, ("test", "train", "test", "train"), strict=True))
    read = read_class_splits(write(tmp_path, splits))
    assert read == splits
    divided = apply_class_splits(table, read)
    assert divided.split.tolist() == ["test", "test", "train", "train", "test", "test", "train", "train", ""]
    assert divided.labels is table.labels


@pytest.mark.parametrize("name", ["a\rb", "a\nb", "a\r\nb"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_ends_in_the_name_of_a_class(name: str, line_end: str, tmp_path: Path) -> None:
    file = tmp_path / "splits.csv"
    file.write_text(line_end.join(["class,split", f'"{name}",train', "dog,test", ""]), newline="")
    assert read_class_splits(file) == {name: "train", "dog": "test"}
    assert read_class_splits(write(tmp_path, {"dog": "test", name: "train"})) == {name: "train", "dog": "test"}


@pytest.mark.parametrize(("in_table", "in_file"), [("\u00eb", "e\u0308"), ("e\u0308", "\u00eb")])
def test_a_name_composed_and_decomposed_is_one(in_table: str, in_file: str, table: ImageTable, tmp_path: Path) -> None:
    splits = {in_file: "test"} | dict.fromkeys(NAMES[1:], "train")
    divided = apply_class_splits(
        replace(table, names=((in_table, *NAMES[1:]),)), read_class_splits(write(tmp_path, splits))
    )
    assert divided.split.tolist() == ["test", "test", *["train"] * 6, ""]


def test_classes_without_names_are_numbers(table: ImageTable) -> None:
    divided = apply_class_splits(replace(table, names=()), {"0": "test", "1": "train", "2": "train", "3": "train"})
    assert divided.split.tolist() == ["test", "test", *["train"] * 6, ""]


WRONG_FILES = {
    "column": ("class,part\nant,train\n", "line 1: no column 'split'; give the columns class and split"),
    "split": ("class,split\nant,val\n", "line 2: split 'val', expected train or test"),
    "twice": ("class,split\nant,train\nant,test\n", "line 3: the class 'ant' stands there a second time"),
    "side": ("class,split\nant,train\ndog,train\n", "no class has the split test"),
    "nothing": ("class,split\n", "no class has the split train"),
    "cells": ("class,split\nant\n", "line 2: 1 cells, the header has 2"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_faulty_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "splits.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as refusal:
        read_class_splits(file)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(InputError, match=r"dataset.class_splits=/none.csv: no such file; give a .csv file"):
        read_class_splits("/none.csv")


def test_unknown_and_missing_classes_are_one_line(table: ImageTable) -> None:
    splits = dict.fromkeys(NAMES, "train")
    with pytest.raises(InputError, match="no class is called 'ants'; nearest: ant"):
        apply_class_splits(table, splits | {"ants": "test"})
    del splits["dog"]
    with pytest.raises(InputError, match="1 of 4 classes have no split there, such as 'dog'"):
        apply_class_splits(table, splits)


def test_tables_that_cannot_be_divided_by_class_are_refused(table: ImageTable) -> None:
    splits = dict.fromkeys(NAMES, "train")
    query = replace(table, split=np.where(table.split == "test", "query", table.split))
    with pytest.raises(InputError, match=r"dataset.class_splits: the test has queries and a gallery"):
        apply_class_splits(query, splits)
    listed = replace(table, benchmark=np.where(table.split == "test", 0, -1))
    with pytest.raises(InputError, match=r"dataset.class_splits: the test has a list for each level"):
        apply_class_splits(listed, splits)
    doubled = replace(table, names=(("ant", "bee", "ant", "dog"),))
    with pytest.raises(InputError, match="two classes are called 'ant'"):
        apply_class_splits(doubled, splits)
