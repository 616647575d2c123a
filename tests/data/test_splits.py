from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml.data.splits import complete_splits, numbered
from dml.data.table import ImageTable
from dml.ops.errors import InputError

lenient = settings(deadline=None)  # the cores are shared


def table(classes: list[int], split: list[str] | None = None) -> ImageTable:
    return ImageTable(
        paths=np.array([f"{i}.jpg" for i in range(len(classes))]),
        labels=np.array(classes)[:, None],
        split=np.array(split or [""] * len(classes)),
        levels=("class",),
        source="mine",
    )


def classes(images: ImageTable, split: str) -> set[int]:
    return {label for label, of in zip(images.labels[:, 0].tolist(), images.split.tolist(), strict=True) if of == split}


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
def test_numbers_follow_the_sorted_names(names: list[str]) -> None:
    labels, found = numbered(names)
    assert found == tuple(sorted(set(names)))
    assert [found[label] for label in labels.tolist()] == names
    assert labels.dtype == np.int64


@lenient
@given(st.lists(st.integers(0, 9), min_size=1), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 5))
def test_whole_classes_are_drawn(labels: list[int], test: float, val: float, seed: int) -> None:
    number = len(set(labels))
    images = table(labels)
    tested = min(max(round(test * number), 1), number - 1)
    held_out = min(max(round(val * (number - tested)), 1), number - tested - 1)
    if number < 2 or number - tested < 2:
        with pytest.raises(InputError, match=r"mine: [01] training class, two are needed to draw (test|val)_fraction"):
            complete_splits(images, test_fraction=test, val_fraction=val, seed=seed)
        return
    split = complete_splits(images, test_fraction=test, val_fraction=val, seed=seed)
    found = [classes(split, name) for name in ("train", "val", "test")]
    assert [len(of) for of in found] == [number - tested - held_out, held_out, tested]
    assert set.union(*found) == set(labels)


def test_a_draw_depends_on_the_seed_and_the_classes_alone() -> None:
    def drawn(labels: list[int], **changed: Any) -> set[int]:
        arguments: dict[str, Any] = {"test_fraction": 0.5, "val_fraction": 0.0, "seed": 0} | changed
        return classes(complete_splits(table(labels), **arguments), "test")

    labels = [*range(20), *range(20)]
    expected = drawn(labels)
    assert expected == drawn(labels[::-1]) == drawn(labels[:20]) == drawn(labels, val_fraction=0.2)
    assert expected != drawn(labels, seed=1)
    assert 3 < sum(label < 10 for label in expected) < 8  # not the first half


def test_splits_of_ones_own_are_kept() -> None:
    split = ["train", "train", "train", "val", "query", "gallery"]
    images = table([0, 1, 2, 3, 4, 4], split)
    assert complete_splits(images, test_fraction=0.5, val_fraction=0.5, seed=0).split.tolist() == split
    drawn = complete_splits(table([0, 1, 2, 3], [*split[:3], "test"]), test_fraction=0.5, val_fraction=0.3, seed=0)
    assert len(classes(drawn, "val")) == 1
    assert len(classes(drawn, "train")) == 2
    assert classes(drawn, "test") == {3}


def test_no_validation_is_drawn_if_none_is_asked_for() -> None:
    drawn = complete_splits(table([0, 1, 2, 3]), test_fraction=0.5, val_fraction=0, seed=0)
    assert set(drawn.split.tolist()) == {"train", "test"}


@pytest.mark.parametrize(
    ("split", "found"),
    [(["train", "val"], "train, val"), (["test", "test"], "test"), (["train", "query"], "query, train")],
)
def test_splits_that_lack_a_half(split: list[str], found: str) -> None:
    with pytest.raises(InputError, match=f"^mine: has the splits {found}; train and test are needed, or train, query"):
        complete_splits(table([0, 1], split), test_fraction=0.5, val_fraction=0, seed=0)


@pytest.mark.parametrize("fraction", [-0.5, 1, 2.5])
def test_fractions(fraction: float) -> None:
    with pytest.raises(InputError, match=rf"dataset\.reader\.test_fraction={fraction}: a number between 0 and 1"):
        complete_splits(table([0, 1]), test_fraction=fraction, val_fraction=0, seed=0)
    with pytest.raises(InputError, match=rf"dataset\.reader\.val_fraction={fraction}: a number between 0 and 1"):
        complete_splits(table([0, 1, 2]), test_fraction=0.3, val_fraction=fraction, seed=0)
