from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ranked_tables import rank_in_order
from trees.market1501 import IMAGES, TREE
from trees.tree import write_images

from dml.data.readers.market1501 import read
from dml.data.table import ImageTable

# the worked example: (person, camera) of the gallery by falling score, for a query of person 7 by camera 1
RANKING = ("7 1", "7 2", "3 1", "0 2", "-1 1", "7 1", "7 3", "3 2", "7 2")


@pytest.fixture
def example(tmp_path: Path) -> tuple[ImageTable, list[str]]:
    gallery = []
    for frame, (person, camera) in enumerate(map(str.split, RANKING)):
        gallery.append(f"{person if person == '-1' else person.zfill(4)}_c{camera}s1_{frame:06d}_00.jpg")
    write_images(tmp_path / "bounding_box_train", ["0001_c1s1_000000_00.jpg"])
    write_images(tmp_path / "query", ["0007_c1s1_000900_00.jpg"])
    write_images(tmp_path / "bounding_box_test", gallery)
    return read(tmp_path).subset("query", "gallery"), gallery


def test_the_worked_example(example: tuple[ImageTable, list[str]]) -> None:
    table, order = example
    found = rank_in_order(table, order, metrics=["recall", "ap", "trapezoid_ap"])
    assert found["level0/recall@1"] == 1
    assert found["level0/ap"] == pytest.approx(0.6666666666666666, abs=1e-9)
    assert found["level0/trapezoid_ap"] == pytest.approx(0.6222222222222222, abs=1e-9)


def test_what_is_excluded_matters(example: tuple[ImageTable, list[str]]) -> None:
    """Junk is gone, so the value is neither that of no exclusion with junk, nor that of the whole camera."""
    table, order = example
    nothing = rank_in_order(replace(table, excluded=np.empty((0, 2), dtype=np.int64)), order, metrics=["ap"])
    assert nothing["level0/ap"] == pytest.approx((1 + 1 + 3 / 5 + 4 / 6 + 5 / 8) / 5, abs=1e-9)


def test_rows_and_pairs(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path)
    listed = [image for image in IMAGES if "/-1_" not in image]
    assert table.paths.tolist() == [f"{tmp_path}/{image}" for image in listed]
    assert table.names == (("0000", "0001", "0003", "0004", "0007"),)
    assert table.labels[:, 0].tolist() == [1, 1, 3, 3, 2, 4, 0, 0, 2, 2, 4, 4, 4]
    pairs = [(listed[query][:13], listed[item][18:25]) for query, item in table.excluded.tolist()]
    assert sorted(pairs) == [("query/0003_c1", "0003_c1"), ("query/0007_c1", "0007_c1"), ("query/0007_c1", "0007_c1")]
