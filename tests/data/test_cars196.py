from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from trees import cars196, cars196_devkit
from trees.cars196 import CLASSES, NAMES, cells, changed, struct, where
from trees.tree import remove

from dml.data.readers.cars196 import read
from dml.ops.errors import InputError


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
    changed(where("class", 5, **{"class": 5.5}))(tmp_path)
    with pytest.raises(InputError, match=r"cars_annos\.mat: class 5\.5, expected a whole number"):
        read(tmp_path)


def test_a_list_may_have_one_image(tmp_path: Path) -> None:
    cars196.build(tmp_path)
    cars196.write_lists(tmp_path, cars196.records()[:1])
    assert read(tmp_path).labels.tolist() == [[0]]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"class_names": cells(NAMES)}, "no variable annotations in it"),
        ({"annotations": np.arange(3), "class_names": cells(NAMES)}, "its annotations have no relative_im_path"),
        ({"annotations": struct([{"class": 1}])}, "its annotations have no relative_im_path"),
        ({"annotations": struct(cars196.records())}, "no variable class_names in it"),
        (
            {"annotations": struct([*cars196.records(), cars196.records()[0] | {"class": cells(range(99))}])},
            "class array",
        ),
    ],
)
def test_a_mat_file_of_something_else(contents: dict[str, Any], message: str, tmp_path: Path) -> None:
    cars196.build(tmp_path)
    savemat(tmp_path / "cars_annos.mat", contents)
    with pytest.raises(InputError, match=rf"cars_annos\.mat: {message}") as raised:
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
