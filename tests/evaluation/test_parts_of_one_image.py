"""Parts of a query's own image are no answers to it."""

from typing import Any

import numpy as np
import pytest

from dml.data.overview import warn_of_copies
from dml.data.table import ImageTable
from dml.evaluation.evaluator import evaluate_table
from dml.evaluation.items import check_queries
from dml.runtime.errors import InputError


def make_table(split: list[str], seed: int = 0) -> ImageTable:
    rng = np.random.default_rng(seed)
    number = len(split)
    files = rng.integers(0, number // 3, number)
    return ImageTable(
        paths=np.array([f"{file}.png#{row},0,{row + 1},1" for row, file in enumerate(files)]),
        labels=rng.integers(0, 3, (number, 1)),
        split=np.array(split),
        levels=("kind",),
    )


@pytest.mark.parametrize("split", [["test"] * 24, ["query", "gallery"] * 12, ["val"] * 24])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_a_loop(split: list[str], seed: int) -> None:
    table = make_table(split, seed)
    vectors = np.random.default_rng(seed).normal(size=(24, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    files = np.array([path.partition("#")[0] for path in table.paths])
    hits, precisions = [], []
    for query in np.flatnonzero(table.split != "gallery"):
        items = np.flatnonzero((table.split != "query") & (files != files[query]))
        right = (table.labels[items, 0] == table.labels[query, 0])[np.argsort(-vectors[items] @ vectors[query])]
        if right.any():
            hits.append(right[0])
            precisions.append(np.mean([right[: rank + 1].mean() for rank in np.flatnonzero(right)]))
    found: Any = evaluate_table(vectors, table, metrics=["recall", "ap", "map@r"], recall_at=(1,))
    assert found["level0/recall@1"] == pytest.approx(np.mean(hits), abs=1e-9)
    assert found["level0/ap"] == pytest.approx(np.mean(precisions), abs=1e-6)


def test_a_class_in_one_image_has_no_positive() -> None:
    paths = np.array(["a#0,0,1,1", "a", "b#0,0,1,1", "b#1,0,2,1"])
    table = ImageTable(paths, np.array([[0], [0], [1], [1]]), np.array(["test"] * 4), ("kind",))
    with pytest.raises(InputError, match="none of the 4 images in the test split has another image of its kind there"):
        check_queries(table)


def test_parts_in_query_and_gallery_are_no_copies_to_warn_of(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_copies(make_table(["query", "gallery"] * 12))
    assert caplog.text == ""
