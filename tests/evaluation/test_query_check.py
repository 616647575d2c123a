from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.table import ImageTable
from dml.evaluation.evaluator import evaluate_table
from dml.evaluation.items import check_queries, check_validation_classes
from dml.runtime.errors import InputError


def table(labels: Any, split: list[str], **columns: Any) -> ImageTable:
    array = np.array(labels, dtype=np.int64)
    levels = tuple(f"level{i}" for i in range(array.shape[1]))
    paths = np.array([f"{i}.jpg" for i in range(len(array))])
    return ImageTable(paths=paths, labels=array, split=np.array(split), levels=levels, source="mine.csv", **columns)


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
