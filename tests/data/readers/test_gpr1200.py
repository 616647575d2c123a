from pathlib import Path

import pytest
from ranked_tables import rank_in_order
from trees.tree import write_images

from dml.data.readers.gpr1200 import read
from dml.data.table import EVERY_LEVEL


def test_the_worked_example(tmp_path: Path) -> None:
    """A query counts among its positives: the first category at ranks 1, 3, 4 and 10."""
    relevant = [1, 0, 1, 1, 0, 0, 0, 0, 0, 1]
    names = [f"{'0' if hit else '1'}_{rank}.jpg" for rank, hit in enumerate(relevant)]
    write_images(tmp_path / "images", names)
    table = read(tmp_path)
    rows = [row for row, split in enumerate(table.split) if split == "gallery" or table.paths[row].endswith("/0_0.jpg")]
    found = rank_in_order(table.take(rows), names, metrics=["ap"])
    assert found == pytest.approx(
        {"level0/ap": 0.7041666666666666, "mean/ap": 0.7041666666666666, "level0/queries_without_positives": 0},
        abs=1e-9,
    )


def test_rows_are_sorted_by_category(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ["10_a.jpg", "2_b.jpg", "2_a.jpg", "0_x.jpg"])
    table = read(tmp_path)
    names = [path.rpartition("/")[2] for path in table.paths.tolist()]
    assert names == ["0_x.jpg", "2_a.jpg", "2_b.jpg", "10_a.jpg"] * 2
    assert table.labels[:, 0].tolist() == [0, 2, 2, 10] * 2
    assert table.split.tolist() == ["query"] * 4 + ["gallery"] * 4
    assert table.benchmark.tolist() == [0] * 4 + [EVERY_LEVEL] * 4
