import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from image_tables import make_table

from dml.data.cells import number_classes
from dml.data.split_names import SPLIT_WORDS, match_splits
from dml.data.splits import complete_splits, describe_shared_classes
from dml.data.table import ImageTable
from dml.runtime.errors import InputError


def table(classes: list[int], split: list[str] | None = None) -> ImageTable:
    return make_table(classes, split or "", source="mine")


def classes(images: ImageTable, split: str) -> set[int]:
    return {label for label, of in zip(images.labels[:, 0].tolist(), images.split.tolist(), strict=True) if of == split}


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
def test_numbers_follow_the_sorted_names(names: list[str]) -> None:
    labels, found = number_classes(names)
    composed = [unicodedata.normalize("NFC", name) for name in names]
    assert found == tuple(sorted(set(composed)))
    assert [found[label] for label in labels.tolist()] == composed
    assert labels.dtype == np.int64


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8).map(
    lambda name: unicodedata.normalize("NFC", name)
)


def named_table(names: Iterable[str]) -> ImageTable:
    labels, found = number_classes(names)
    return replace(table(labels.tolist()), names=(found,))


def split_of(images: ImageTable, **changed: Any) -> dict[str, str]:
    """The split of each class by its name; a class is in one split alone."""
    arguments: dict[str, Any] = {"test_fraction": 0.5, "val_fraction": 0.2, "seed": 0} | changed
    drawn = complete_splits(images, **arguments)
    pairs = {(images.names[0][label], split) for label, split in zip(drawn.labels[:, 0], drawn.split, strict=True)}
    splits = {name: str(split) for name, split in pairs}
    assert len(pairs) == len(splits)
    return splits


@given(st.lists(st.integers(0, 30), min_size=1), st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 5))
def test_half_of_the_intended_number_of_classes_is_drawn_at_least(
    labels: list[int], test: float, val: float, seed: int
) -> None:
    number = len(set(labels))
    images = table(labels)
    if number < 6:
        with pytest.raises(InputError, match=rf"^mine: {number} class(es)?, 6 are needed to draw whole classes"):
            complete_splits(images, test_fraction=test, val_fraction=val, seed=seed)
        return
    split = complete_splits(images, test_fraction=test, val_fraction=val, seed=seed)
    trained, held_out, tested = (len(classes(split, name)) for name in ("train", "val", "test"))
    assert trained + held_out + tested == number
    assert min(trained, held_out, tested) >= 2
    assert tested >= min(number * test / 2, number - 4)
    assert trained + held_out >= number * (1 - test) / 2
    assert held_out >= min((trained + held_out) * val / 2, trained + held_out - 2)
    assert held_out >= min(4, (trained + held_out) // 3)
    assert trained >= (trained + held_out) * (1 - val) / 2


@settings(max_examples=30, deadline=None)
@given(st.lists(NAMES, min_size=40, max_size=80, unique=True), st.data())
def test_a_class_stays_where_it_was_when_another_is_added(names: list[str], data: st.DataObject) -> None:
    """Unless the number of drawn classes is so small or large that it is corrected, which is rare for 40 classes."""
    added, *others = names
    before, after = (split_of(named_table(some), seed=3, val_fraction=0.5) for some in (others, names))
    for sizes in (Counter(before.values()), Counter(after.values())):
        assume(len(names) / 4 + 1 < sizes["test"] < len(names) * 3 / 4 - 1)
        assume((sizes["train"] + sizes["val"]) / 4 + 1 < sizes["val"] < (sizes["train"] + sizes["val"]) * 3 / 4 - 1)
    assert after == before | {added: after[added]}
    assert split_of(named_table(data.draw(st.permutations(names))), seed=3, val_fraction=0.5) == after


def test_the_draw_is_the_same_on_every_machine() -> None:
    splits = split_of(named_table([f"class {i}" for i in range(12)] + ["Zo\u00eb"]))
    tested = {"class 1", "class 10", "class 5", "class 8", "class 9", "Zo\u00eb"}
    assert splits == {
        name: "test" if name in tested else "val" if name in {"class 11", "class 2"} else "train" for name in splits
    }
    assert split_of(named_table([f"class {i}" for i in range(12)] + ["Zoe\u0308"])) == splits


def test_a_few_classes_are_added_to_a_draw_that_has_too_few() -> None:
    """Of ten classes, 3 to 6 are tested, whatever the seed; the hashes alone would give 0 to 10."""
    numbers = Counter([*split_of(named_table("abcdefghij"), seed=seed).values()].count("test") for seed in range(200))
    assert set(numbers) == {3, 4, 5, 6}
    assert numbers[5] < 100


def test_the_draws_for_validation_and_test_are_independent() -> None:
    images = named_table(f"{i}" for i in range(1000))
    splits = split_of(images, test_fraction=0.3, val_fraction=0.3)
    counts = Counter(splits.values())
    assert 250 < counts["test"] < 350
    assert 0.25 < counts["val"] / (1000 - counts["test"]) < 0.35
    others = split_of(images, test_fraction=0.3, val_fraction=0.3, seed=1)
    assert 0.3 < np.mean([splits[name] == others[name] for name in splits]) < 0.45


@pytest.mark.parametrize(
    ("labels", "split", "val_fraction", "message"),
    [
        ([0, 1, 2, 3, 4], None, 0.2, "5 classes, 6 are needed"),
        ([0, 0], None, 0, "1 class, 2 are needed"),
        ([0, 1, 2, 3], ["train", "train", "train", "test"], 0.2, "3 classes, 4 are needed"),
    ],
)
def test_too_few_classes(labels: list[int], split: list[str] | None, val_fraction: float, message: str) -> None:
    with pytest.raises(InputError, match=rf"^mine: {message} .*dataset\.reader\.val_fraction=0"):
        complete_splits(table(labels, split), test_fraction=0.5, val_fraction=val_fraction, seed=0)


@pytest.mark.parametrize(("number", "fewest"), [(2, (1, 1)), (3, (2, 1)), (4, (2, 2)), (5, (2, 2))])
def test_without_a_validation_fewer_classes_do(number: int, fewest: tuple[int, int]) -> None:
    for seed in range(20):
        drawn = complete_splits(table([*range(number)]), test_fraction=0.5, val_fraction=0, seed=seed)
        assert all(np.array([len(classes(drawn, "train")), len(classes(drawn, "test"))]) >= fewest)


def test_splits_of_ones_own_are_kept() -> None:
    split = ["train", "train", "train", "val", "query", "gallery"]
    images = table([0, 1, 2, 3, 4, 4], split)
    assert complete_splits(images, test_fraction=0.5, val_fraction=0.5, seed=0).split.tolist() == split
    own = table([*range(5)], ["train"] * 4 + ["test"])
    drawn = complete_splits(own, test_fraction=0.5, val_fraction=0.3, seed=0)
    assert len(classes(drawn, "val")) == 2
    assert len(classes(drawn, "train")) == 2
    assert classes(drawn, "test") == {4}


@pytest.mark.parametrize(
    ("split", "found"),
    [
        (["test", "val"], "test, val"),
        (["test", "test"], "test"),
        (["train", "query"], "query, train"),
        (["train", "test", "query", "gallery"], "gallery, query, test, train"),
        (["train", "test", "query"], "query, test, train"),
    ],
)
def test_splits_that_cannot_be_trained_on_and_tested(split: list[str], found: str) -> None:
    with pytest.raises(InputError, match=f"^mine: has the splits {found}; train and test are needed, or train, query"):
        complete_splits(table([*range(len(split))], split), test_fraction=0.5, val_fraction=0, seed=0)


@pytest.mark.parametrize("fraction", [-0.5, 1, 2.5])
def test_fractions(fraction: float) -> None:
    with pytest.raises(InputError, match=rf"dataset\.reader\.test_fraction={fraction}: expected a number between 0"):
        complete_splits(table([0, 1]), test_fraction=fraction, val_fraction=0, seed=0)
    with pytest.raises(InputError, match=rf"dataset\.reader\.val_fraction={fraction}: expected a number between 0 and"):
        complete_splits(table([*range(6)]), test_fraction=0.3, val_fraction=fraction, seed=0)


def test_no_class_is_drawn_for_a_test_with_a_fraction_of_0() -> None:
    images = table([*range(20)])
    assert {*complete_splits(images, test_fraction=0, val_fraction=0.2, seed=0).split.tolist()} == {"train", "val"}
    assert {*complete_splits(images, test_fraction=0, val_fraction=0, seed=0).split.tolist()} == {"train"}


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        ([0, 0, 1, 1, 2], ""),
        ([0, 1, 1, 2, 3], "1 class is in training too, such as 1: the checkpoint isn't chosen on new classes"),
        ([0, 1, 0, 1, 3], "2 classes are in training too, such as 0: the checkpoint isn't chosen on new classes"),
    ],
)
def test_classes_of_the_validation_that_are_trained_on_are_counted(labels: list[int], line: str) -> None:
    assert describe_shared_classes(table(labels, ["train", "train", "val", "val", "test"])) == line
    assert describe_shared_classes(table(labels, ["train"] * 4 + ["test"])) == ""


def test_a_test_alone_takes_what_is_in_no_split() -> None:
    images = table([*range(6)])
    assert {*complete_splits(images, test_fraction=None, val_fraction=0.2, seed=0).split.tolist()} == {"test"}
    one = table([0, 0], ["train", "train"])
    assert {*complete_splits(one, test_fraction=None, val_fraction=0.2, seed=0).split.tolist()} == {"test"}
    for split in (["query", "gallery"], ["test", "test"], ["val", "test"], ["val", "val"], ["train", "test"]):
        own = table([0, 0], split)
        assert complete_splits(own, test_fraction=None, val_fraction=0, seed=0).split.tolist() == split


@pytest.mark.parametrize(
    "form", ["{}", "{}s", "{}-set", "images_{}", "{}2017", "is_{}", "{}_images", "The {} data (1)"]
)
def test_words_of_splits_in_names(form: str) -> None:
    for split, word in ((split, word) for split, words in SPLIT_WORDS.items() for word in words.split()):
        for name in (form.format(word), form.format(word.upper()), form.format(word.capitalize())):
            assert match_splits([name]) == {name: "test" if split == "eval" else split}


@pytest.mark.parametrize(
    "name", ["", "valley", "contest", "detest", "trainer", "query test train", "train/val", "été", "7"]
)
def test_names_that_mean_no_split(name: str) -> None:
    assert match_splits([name]) == {}
