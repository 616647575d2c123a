"""What queries and a gallery have to be, which is told before anything is measured."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_tables import make_table

from dml.data.overview import warn_of_copies
from dml.data.table import ImageTable
from dml.evaluation import evaluate
from dml.evaluation.evaluator import evaluate_table
from dml.evaluation.items import check_queries, check_validation_classes
from dml.runtime.errors import InputError


def table(labels: Any, split: list[str], **columns: Any) -> ImageTable:
    return make_table(labels, split, source="mine.csv", **{"levels": ("level0", "level1")[: len(labels[0])]} | columns)


def test_images_that_are_alone_in_their_class() -> None:
    check_queries(table([[0], [1], [1]], ["test"] * 3))
    with pytest.raises(InputError, match=r"^mine\.csv: none of the 3 images in the test split has another"):
        check_queries(table([[0], [1], [2]], ["test"] * 3))


def test_queries_without_their_class_in_the_gallery() -> None:
    check_queries(table([[0], [1], [1]], ["query", "query", "gallery"]))
    with pytest.raises(InputError, match=r"none of the 2 queries has another image of its level0 in the gallery"):
        check_queries(table([[0], [1], [2]], ["query", "query", "gallery"]))
    copies = {"content": np.array([-1, 5, 5])}
    with pytest.raises(InputError, match="none of the 2 queries"):
        check_queries(table([[0], [1], [1]], ["query", "query", "gallery"], **copies))


def test_a_level_of_a_benchmark_list() -> None:
    labels, benchmark = [[0, 0], [1, 0], [2, 1], [2, 1]], np.array([1, 1, 0, 0])
    check_queries(table(labels, ["test"] * 4, benchmark=benchmark))
    with pytest.raises(InputError, match="none of the 2 images in the val split has another image of its level0 there"):
        check_queries(table(labels, ["val"] * 4, benchmark=1 - benchmark))


def test_a_validation_of_one_class_chooses_nothing() -> None:
    check_validation_classes(table([[0], [0], [1]], ["val"] * 3))
    with pytest.raises(InputError, match=r"^mine\.csv: the images in the val split are all of one level0, so "):
        check_validation_classes(table([[1, 0], [1, 1]], ["val"] * 2))


def test_a_table_without_rows_is_passed() -> None:
    check_queries(table([[0], [1]], ["train"] * 2).subset("val"))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=2, max_size=6), st.booleans())
def test_it_refuses_what_an_evaluation_refuses(labels: list[tuple[int, int]], has_gallery: bool) -> None:
    split = ["query"] + ["gallery"] * (len(labels) - 1) if has_gallery else ["test"] * len(labels)
    part = table(labels, split)
    embeddings = np.random.default_rng(0).normal(size=(len(labels), 4)).astype(np.float32)

    def is_refused(function: Any, *arguments: Any) -> bool:
        try:
            function(*arguments)
        except InputError:
            return True
        return False

    assert is_refused(check_queries, part) == is_refused(evaluate_table, embeddings, part)


X = np.random.default_rng(0).normal(size=(200, 32))
Y = np.arange(200) % 20
ORDER = np.random.default_rng(1).permutation(200)
OTHERS = np.random.default_rng(2).normal(size=(50, 32))


def recall(*arrays: Any, **settings: Any) -> float:
    return evaluate(*arrays, metrics=["recall"], recall_at=(1,), clustering=False, **settings)["level0/recall@1"]


def in_half_precision(rows: Any) -> Any:
    return torch.from_numpy(rows).half()


@pytest.mark.parametrize(
    "arrays",
    [
        (X, Y, X, Y),
        (X, Y, X[ORDER], Y[ORDER]),
        (X, Y, 2 * X, Y),
        (X, Y, np.concatenate([X, X, OTHERS]), np.concatenate([Y, Y, Y[:50]])),
        (X[:1], Y[:1], X, Y),
        (X, np.stack([Y, Y // 4], axis=1), X, np.stack([Y, Y // 5], axis=1)),
        (in_half_precision(X), torch.from_numpy(Y), in_half_precision(X), torch.from_numpy(Y)),
    ],
)
def test_a_gallery_that_holds_every_query_is_refused(arrays: Any) -> None:
    with pytest.raises(InputError, match=rf"{len(arrays[0])} of .* call evaluate\(query, query_labels\) without"):
        recall(*arrays)


def test_some_queries_in_their_gallery_are_counted_in_one_warning(caplog: Any) -> None:
    recall(X, Y, np.concatenate([X[:50], OTHERS]), np.concatenate([Y[:50], Y[:50]]))
    assert [record.getMessage()[:17] for record in caplog.records] == ["50 of 200 queries"]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ((np.ones((200, 4)), Y, np.ones((200, 4)), Y), 0.05),  # a collapsed model
        ((np.zeros((200, 4)), Y, np.zeros((200, 4)), Y), 0.05),
        ((np.eye(20)[Y], Y, np.eye(20)[Y], Y), 1.0),  # a perfect one, whose classes have collapsed
        ((X, Y, X, (Y + 1) % 20), 0.0),
        ((X, Y), recall(X, Y)),
    ],
)
def test_other_galleries_are_measured_without_a_word(arrays: Any, expected: float, caplog: Any) -> None:
    assert recall(*arrays) == expected
    assert not caplog.records


def test_a_query_that_excludes_its_nearest_item_may_be_in_its_gallery(caplog: Any) -> None:
    assert recall(X, Y, X, Y, exclude_nearest=True) == recall(X, Y)
    assert not caplog.records


def make_parts(split: list[str], seed: int = 0) -> ImageTable:
    rng = np.random.default_rng(seed)
    number = len(split)
    files = rng.integers(0, number // 3, number)
    paths = [f"{file}.png#{row},0,{row + 1},1" for row, file in enumerate(files)]
    return make_table(rng.integers(0, 3, number), split, paths)


@pytest.mark.parametrize("split", [["test"] * 24, ["query", "gallery"] * 12, ["val"] * 24])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_a_loop(split: list[str], seed: int) -> None:
    table = make_parts(split, seed)
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
    warn_of_copies(make_parts(["query", "gallery"] * 12))
    assert caplog.text == ""
