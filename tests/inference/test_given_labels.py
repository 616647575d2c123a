"""Labels that are given to an index: those of a table's cells, and missing ones that are no classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dml
from dml.inference.image_embedder import ImageEmbedder
from dml.runtime.errors import InputError

pytest_plugins = ("small_embedders",)


DAYS = ["2020-01-01", "1999-12-31", "2021-01-01"]


def labels_of(index: dml.Index) -> list[str]:
    return index.items.labels.tolist()


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([None, "a", float("nan"), pd.NA], ["", "a", "", ""]),
        (pd.Series(["a", pd.NA, None, " b "], dtype="string"), ["a", "", "", "b"]),
        (np.array([6, np.nan, 7.5, 10], dtype=np.float32), ["6.0", "", "7.5", "10.0"]),
        (torch.tensor([6, 7, 7, 10]), ["6", "7", "7", "10"]),
        (range(4), ["0", "1", "2", "3"]),
        ([True, None, np.False_, False], ["True", "", "False", "False"]),
        (np.array(["NaT", *DAYS], dtype="datetime64[ns]"), ["", *DAYS]),
        (["007", "7b", "Zoe\u0308", ""], ["007", "7b", "Zo\u00eb", ""]),
    ],
)
def test_labels_are_the_names_of_a_tables_cells(
    labels: Any, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    paths = [f"{row}.jpg" for row in range(4)]
    index = dml.Index.build(vectors=np.eye(4, dtype=np.float32), paths=paths, labels=labels)
    assert labels_of(index) == names
    assert not caplog.messages


def test_spellings_of_one_class_are_named(caplog: pytest.LogCaptureFixture) -> None:
    dml.Index.build(vectors=np.eye(3, dtype=np.float32), paths=["a", "b", "c"], labels=["C0", "c0", "7"])
    (message,) = caplog.messages
    assert "'C0' and 'c0'" in message


def test_images_are_added_and_replaced_with_labels(model: ImageEmbedder, photos: Path) -> None:
    paths = sorted(map(str, photos.rglob("*.png")))[:5]
    index = dml.Index.build(model, paths[:2], labels=["robin", float("nan")])
    index.add(paths[2:4], labels=pd.Series([6, None]))
    assert labels_of(index) == ["robin", "", "6", ""]
    index.upsert([paths[0], paths[1], paths[4]], labels=[None, "owl", "lynx"])
    named = dict(zip(index.items.paths.tolist(), labels_of(index), strict=True))
    assert [named[path] for path in paths] == ["robin", "owl", "6", "", "lynx"]


def test_each_image_needs_one_label() -> None:
    wrong: list[Any] = [["a"], np.array(["a", "b", "c"]), np.zeros((2, 1)), pd.DataFrame({"a": [1, 2]})]
    for labels, count in zip(wrong, ("1", "3", "2 x 1", "2 x 1"), strict=True):
        with pytest.raises(InputError, match=f"^labels: {count} for 2 images$"):
            dml.Index.build(vectors=np.eye(2, dtype=np.float32), paths=["a.jpg", "b.jpg"], labels=labels)
