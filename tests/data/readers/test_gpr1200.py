from pathlib import Path

import numpy as np
import pytest
from ranked_tables import rank_in_order
from trees.tree import write_images

from dml.data.readers.gpr1200 import read
from dml.data.table import EVERY_LEVEL
from dml.evaluation.evaluator import evaluate_table


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


def test_the_partial_scores_are_those_of_blocks_of_200_categories(tmp_path: Path) -> None:
    """Against a loop over all queries, each of which searches all images: official scores are means of blocks."""
    categories = [number for first in range(0, 1200, 200) for number in (first, first + 1, first + 199)]
    write_images(tmp_path / "images", [f"{category}_{i}.jpg" for category in categories for i in range(3)])
    table = read(tmp_path)
    assert table.levels == ("landmarks", "nature", "sketches", "objects", "products", "faces")
    half = len(table) // 2
    vectors = np.random.default_rng(3).normal(size=(half, 4))
    found = evaluate_table(np.tile(vectors, (2, 1)), table, metrics=["ap"])
    numbers = np.array([int(Path(path).name.partition("_")[0]) for path in table.paths[:half].tolist()])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    hits = numbers[np.argsort(-unit @ unit.T, axis=1)] == numbers[:, None]
    values = np.array([np.mean((np.cumsum(row) / np.arange(1, half + 1))[row]) for row in hits])
    for level in range(6):
        assert found[f"level{level}/ap"] == pytest.approx(values[numbers // 200 == level].mean(), abs=1e-9)
    assert found["mean/ap"] == pytest.approx(values.mean(), abs=1e-9)
    assert 0.1 < values.mean() < 0.9
