from pathlib import Path

import numpy as np
import pytest
from trees.sop import HEADER, TREE, rows
from trees.tree import edit

from dml.data.readers.sop import read
from dml.runtime.errors import InputError


def test_the_rows_are_those_of_the_lists_in_their_order(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    train, test = rows().values()
    listed = [("train", line.split()) for line in train] + [("test", line.split()) for line in test]
    assert table.paths.tolist() == [f"{tmp_path}/{path}" for _, (_, _, _, path) in listed]
    assert table.labels.tolist() == [[int(product) - 1, int(kind) - 1] for _, (_, product, kind, _) in listed]
    assert table.split.tolist() == [split for split, _ in listed]
    assert table.levels == ("class", "super_class")
    assert table.labels.dtype == np.int64


def test_names_are_official_ids_and_kinds(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    names = read(str(tmp_path)).names
    assert names[0] == ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11")
    assert names[1] == ("bicycle", "coffee_maker", "toaster")


def test_labels_are_the_official_ids_also_where_some_are_missing(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit("Ebay_train.txt", "^6 3 2 coffee_maker_final.*\n", "")(tmp_path)
    table = read(tmp_path)
    assert sorted(set(table.labels[:, 0].tolist())) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert table.names[0][3] == "4"


@pytest.mark.parametrize(
    ("header", "found"), [("", "''"), ("1 1 1 a.JPG", "'1 1 1 a.JPG'"), (HEADER.upper(), "'IMAGE_ID ")]
)
def test_the_header_is_looked_at(header: str, found: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit("Ebay_test.txt", f"^{HEADER}$", header)(tmp_path)
    with pytest.raises(InputError, match=rf"Ebay_test\.txt, line 1: {found}.*, expected the header '{HEADER}'"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("0 2", "class_id '0', expected a whole number from 1 to 22,634"),
        ("300000000 2", "class_id '300000000', expected a whole number from 1 to 22,634"),
        ("4 0", "super_class_id '0', expected a whole number from 1 to 12"),
        ("4 13", "super_class_id '13', expected a whole number from 1 to 12"),
    ],
)
def test_ids_beyond_the_official_ones_are_named(ids: str, message: str, tmp_path: Path) -> None:
    TREE.build(tmp_path)
    edit("Ebay_train.txt", "^7 4 2 ", f"7 {ids} ")(tmp_path)
    with pytest.raises(InputError, match=rf"Ebay_train\.txt, line 8: {message}$"):
        read(tmp_path)
