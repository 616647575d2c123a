"""A query that is in its own gallery under another row finds itself, which is told before anything is measured."""

from typing import Any

import numpy as np
import pytest
import torch

from dml.evaluation import evaluate
from dml.runtime.errors import InputError

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
