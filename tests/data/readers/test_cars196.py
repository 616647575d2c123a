import zlib
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from trees import cars196, cars196_devkit
from trees.cars196 import CLASSES, NAMES, cells, changed, struct, where
from trees.tree import remove

from dml.data.contents import limit_list_bytes
from dml.data.readers.cars196 import read, read_variable
from dml.runtime.errors import InputError


def test_one_folder_and_one_list(tmp_path: Path) -> None:
    cars196.build(tmp_path)
    table = read(tmp_path)
    assert table.paths.tolist() == [f"{tmp_path}/car_ims/{i:06d}.jpg" for i in range(1, len(CLASSES) + 1)]
    assert table.labels.tolist() == [[number - 1] for number in CLASSES]
    assert table.split.tolist() == ["train" if number <= 98 else "test" for number in CLASSES]
    assert table.names == (tuple(NAMES),)


def test_both_official_parts_are_merged_by_class(tmp_path: Path) -> None:
    """Image 00001.jpg is there in both."""
    cars196_devkit.build(tmp_path)
    table = read(tmp_path)
    expected = [
        (f"{tmp_path}/{part}/{record['fname']}", int(record["class"]) - 1)
        for part, records in cars196_devkit.records().items()
        for record in records
    ]
    assert list(zip(table.paths.tolist(), table.labels[:, 0].tolist(), strict=True)) == expected
    assert table.split.tolist() == ["train" if label < 98 else "test" for _, label in expected]
    assert table.names == (tuple(NAMES),)
    for part in ("cars_train", "cars_test"):  # neither is a split
        assert set(table.split[np.char.find(table.paths, f"/{part}/") > 0]) == {"train", "test"}


def test_the_lists_may_lie_beside_the_folders_and_these_be_doubled(tmp_path: Path) -> None:
    cars196_devkit.build(tmp_path)
    expected = [path.replace("/cars_train/", "/cars_train/cars_train/") for path in read(tmp_path).paths.tolist()]
    for path in (tmp_path / "devkit").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "cars_train").rename(tmp_path / "moved")
    (tmp_path / "cars_train").mkdir()
    (tmp_path / "moved").rename(tmp_path / "cars_train" / "cars_train")
    assert read(tmp_path).paths.tolist() == expected


def test_numbers_may_be_stored_as_matlab_does_by_itself(tmp_path: Path) -> None:
    cars196.build(tmp_path)
    expected = read(tmp_path).labels.tolist()
    changed(lambda record: record | {"class": float(record["class"])})(tmp_path)
    assert read(tmp_path).labels.tolist() == expected


@pytest.mark.parametrize("number", [0, 197, 5.5])
@pytest.mark.data_sets
def test_classes_beyond_the_named_ones_are_refused(number: float, tmp_path: Path) -> None:
    cars196.build(tmp_path)
    changed(where("class", 5, **{"class": number}))(tmp_path)
    line = rf"cars_annos\.mat, annotation 7: class {number}, expected a whole number from 1 to 196$"
    with pytest.raises(InputError, match=line):
        read(tmp_path)


@pytest.mark.data_sets
def test_a_list_may_have_one_image(tmp_path: Path) -> None:
    cars196.build(tmp_path)
    cars196.write_lists(tmp_path, cars196.records()[:1])
    assert read(tmp_path).labels.tolist() == [[0]]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"class_names": cells(NAMES)}, "no variable annotations in it"),
        ({"annotations": np.arange(3), "class_names": cells(NAMES)}, "its annotations have no relative_im_path"),
        (
            {"annotations": struct([{"class": 1}]), "class_names": cells(NAMES)},
            "its annotations have no relative_im_path",
        ),
        ({"annotations": struct(cars196.records())}, "no variable class_names in it"),
        (
            {
                "annotations": struct([*cars196.records(), cars196.records()[0] | {"class": cells(range(99))}]),
                "class_names": cells(NAMES),
            },
            "class array",
        ),
    ],
)
@pytest.mark.data_sets
def test_a_mat_file_of_something_else(contents: dict[str, Any], message: str, tmp_path: Path) -> None:
    cars196.build(tmp_path)
    savemat(tmp_path / "cars_annos.mat", contents)
    with pytest.raises(InputError, match=rf"cars_annos\.mat(, annotation 295)?: {message}") as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


def test_images_of_neither_layout(tmp_path: Path) -> None:
    """Such as a copy with cars_annos.mat, whose paths are of car_ims/, beside the folders of the devkit."""
    cars196.build(tmp_path)
    remove("car_ims")(tmp_path)
    with pytest.raises(InputError, match=r"no car_ims or cars_train in it; give the folder of Cars196, which holds"):
        read(tmp_path)
    (tmp_path / "cars_train").mkdir()
    with pytest.raises(InputError, match=r"no devkit/cars_meta\.mat or cars_meta\.mat in it"):
        read(tmp_path)


def element(kind: int, content: bytes) -> bytes:
    return pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(matrix_class: int, columns: int, content: bytes = b"") -> bytes:
    """A variable ``annotations`` that claims (1, columns) elements."""
    flags, size = element(6, pack("<II", matrix_class, 0)), element(5, pack("<ii", 1, columns))
    return element(14, flags + size + element(1, b"annotations") + content)


def compressed(content: bytes) -> bytes:
    packed = zlib.compress(content)
    return pack("<II", 15, len(packed)) + packed


FIELDS = element(5, pack("<i", 8)) + element(1, b"fname\0\0\0class\0\0\0")
CLAIMS = {
    "cells": matrix(1, 300_000_000),
    "structures": matrix(2, 300_000_000, FIELDS),
    "numbers": matrix(6, 300_000_000, element(9, bytes(8))),
    "cells, compressed": compressed(matrix(1, 300_000_000)),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_list_that_claims_gigabytes(tmp_path: Path, kind: str) -> None:
    """scipy takes memory for all of a matrix before it reads the first of it."""
    path = tmp_path / "list.mat"
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + CLAIMS[kind])
    assert path.stat().st_size < 300
    with pytest.raises(InputError, match=r"list\.mat: more than 1,073,741,824 bytes; data\.max"):
        read_variable(path, "annotations")


def test_a_small_list_with_much_in_it(tmp_path: Path) -> None:
    path = tmp_path / "list.mat"
    content = matrix(6, 1 << 20, element(9, bytes(8 << 20)))
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + compressed(content))
    assert path.stat().st_size < 10_000
    message = r"list\.mat: more than 1,000,000 bytes; data\.max_list_bytes with a larger number reads it"
    with limit_list_bytes(1_000_000), pytest.raises(InputError, match=message):
        read_variable(path, "annotations")
    assert read_variable(path, "annotations").shape == (1 << 20,)
