import logging
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from image_tables import make_table

from dml.data.table import SPLITS, ImageTable, find_faults, hold_out_classes, load
from dml.runtime.errors import InputError

CLASSES = [0, 0, 1, 1, 2, 2, 3, 4]
SPLIT = ["train", "train", "train", "train", "val", "val", "test", ""]


def table(**columns: Any) -> ImageTable:
    """Eight images of five classes in two groups."""
    given: dict[str, Any] = {
        "paths": np.array([f"{i}.png" for i in range(8)]),
        "labels": np.array([[c, c // 3] for c in CLASSES]),
        "split": np.array(SPLIT),
        "levels": ("class", "group"),
    }
    return ImageTable(**given | columns)


def training_table(sizes: list[int]) -> ImageTable:
    """Class 2c has sizes[c] images, in an order of its own; one more class is for testing."""
    labels = np.repeat(2 * np.arange(len(sizes) + 1), [*sizes, 3])
    split = np.where(labels == 2 * len(sizes), "test", np.where(labels == 0, "val", "train"))
    order = np.random.default_rng(0).permutation(len(labels))
    return make_table(labels[order], split[order])


# checks


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"paths": np.array(["a"])}, "1 paths, 8 labels, 8 splits, 1 benchmarks"),
        ({"labels": np.zeros((7, 2), dtype=int)}, "8 paths, 7 labels, 8 splits"),
        ({"split": np.array(SPLIT[:5])}, "8 paths, 8 labels, 5 splits"),
        ({"labels": np.array(CLASSES)}, r"labels of shape \(8,\) for the levels \('class', 'group'\)"),
        ({"labels": np.zeros((8, 2))}, "labels of type float64, expected integers"),
        ({"labels": np.zeros((8, 0), dtype=int), "levels": ()}, r"labels of shape \(8, 0\) for the levels \(\)"),
        ({"benchmark": np.zeros(3, dtype=int)}, "8 paths, 8 labels, 8 splits, 3 benchmarks"),
        ({"names": (("a",) * 5,)}, "names of 1 levels for the levels"),
        ({"names": (("a",) * 4, ("g", "h"))}, "label 4 of level class with 4 names"),
        ({"levels": ("class",)}, r"labels of shape \(8, 2\) for the levels \('class',\)"),
        ({"split": np.array(["tset"] * 8)}, "unknown split 'tset'; the splits are train, val, test, query, gallery"),
        ({"split": np.array([*SPLIT[:7], "Train"])}, "unknown split 'Train'"),
        ({"labels": np.array([[c, c - 1] for c in CLASSES])}, r"negative label \[0, -1\] of 0\.png"),
    ],
)
def test_checks(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"image table: {message}"):
        table(**columns)


# selections


def test_rows_are_in_table_order() -> None:
    assert table().rows("train").tolist() == [0, 1, 2, 3]
    assert table().rows("test", "train").tolist() == [0, 1, 2, 3, 6]
    assert table().rows("gallery").tolist() == table().rows().tolist() == []
    assert table().rows(*SPLITS).tolist() == [0, 1, 2, 3, 4, 5, 6]  # the last row is in none
    assert len(table()) == 8
    with pytest.raises(InputError, match="split=validation: must be one of train, val"):
        table().subset("validation")


def test_subset_keeps_the_meaning_of_labels() -> None:
    names = (("a", "b", "c", "d", "e"), ("g", "h"))
    subset = table(names=names).subset("val", "test")
    assert subset.paths.tolist() == ["4.png", "5.png", "6.png"]
    assert subset.labels.tolist() == [[2, 0], [2, 0], [3, 1]]
    assert subset.split.tolist() == ["val", "val", "test"]
    assert subset.names == names
    assert subset.levels == ("class", "group")


def test_counts() -> None:
    assert table().counts() == {
        "train": {"images": 4, "class": 2, "group": 1},
        "val": {"images": 2, "class": 1, "group": 1},
        "test": {"images": 1, "class": 1, "group": 1},
    }


# folds


@st.composite
def folded(draw: Any) -> tuple[ImageTable, int, int]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=12))
    return training_table(sizes), draw(st.integers(2, len(sizes))), draw(st.integers(0, 3))


@given(folded())
def test_folds_partition_the_training_classes(case: tuple[ImageTable, int, int]) -> None:
    images, folds, seed = case
    training = images.rows("train", "val")
    classes = set(images.labels[training, 0].tolist())
    seen: list[int] = []
    for fold in range(folds):
        held = hold_out_classes(images, folds=folds, fold=fold, seed=seed)
        left, out = (set(held.labels[held.rows(split), 0].tolist()) for split in ("train", "val"))
        assert left.isdisjoint(out)
        assert left | out == classes
        assert held.rows("train", "val").tolist() == training.tolist()
        assert held.rows("test").tolist() == images.rows("test").tolist()
        assert len(out) in (len(classes) // folds, -(-len(classes) // folds))
        seen += out
    assert sorted(seen) == sorted(classes)


def test_folds_are_deterministic_and_depend_on_the_seed() -> None:
    images = training_table([2] * 20)
    again = [hold_out_classes(images, seed=seed).split.tolist() for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


def test_folds_do_not_depend_on_an_earlier_fold_or_on_the_order_of_rows() -> None:
    images = training_table([1, 2, 3, 4, 5, 6])
    expected = hold_out_classes(images, fold=2).split
    assert hold_out_classes(hold_out_classes(images, fold=1), fold=2).split.tolist() == expected.tolist()
    order = np.random.default_rng(1).permutation(len(images))
    shuffled = ImageTable(images.paths[order], images.labels[order], images.split[order], images.levels)
    assert hold_out_classes(shuffled, fold=2).split.tolist() == expected[order].tolist()


def test_rows_outside_of_the_training_classes_stay() -> None:
    """Also where the split's strings are too short for "train"."""
    images = table(split=np.array(["val", "val", "val", "val", "val", "val", "test", ""]))
    held = hold_out_classes(images, folds=3)
    assert held.split[6:].tolist() == ["test", ""]
    assert sorted(set(held.split[:6].tolist())) == ["train", "val"]


@pytest.mark.parametrize(
    ("folds", "fold", "message"),
    [
        (1, 0, r"dataset\.folds=1, dataset\.fold=0: folds are 2 to 6"),
        (-2, 0, r"dataset\.folds=-2"),
        (5, 5, r"dataset\.folds=5, dataset\.fold=5: .* a fold is 0 to folds - 1"),
        (5, -1, r"dataset\.fold=-1"),
        (7, 0, r"dataset\.folds=7"),
    ],
)
def test_impossible_folds(folds: int, fold: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hold_out_classes(training_table([1] * 6), folds=folds, fold=fold)


# counts


def read(root: str | None) -> ImageTable:
    return table(paths=np.array([f"{root}/{i}" for i in range(8)]))


PUBLISHED = {"train": {"images": 4, "class": 2}, "val": {"images": 2}, "test": {"group": 1}}


def test_load_reads_the_root() -> None:
    loaded = load(read, "/data", name="set", counts=PUBLISHED)
    assert loaded.paths[3] == "/data/3"
    assert load(read, None, name="set").counts() == loaded.counts()


@pytest.mark.parametrize("read_nothing", [Counter, partial(Counter, a=1), Counter(), ImageTable.from_frame(table())])
def test_a_reader_returns_a_table(read_nothing: Any) -> None:
    with pytest.raises(InputError, match=r"^dataset\.reader: .*gives a (Counter|ImageTable), expected a function"):
        load(read_nothing, "/data", name="set")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"train": {"images": 5}}, "set: 4 images in the train split, published 5, in /data"),
        ({"train": {"images": 4, "class": 3}}, "set: 2 class in the train split, published 3, in /data"),
        ({"val": {"group": 0}}, "set: 1 group in the val split, published 0, in /data"),
        ({"gallery": {"images": 9}}, "set: 0 images in the gallery split, published 9, in /data"),
        ({"train": {"clas": 2}}, "set: 0 clas in the train split, published 2, in /data"),
    ],
)
def test_load_holds_the_table_against_its_counts(
    counts: dict[str, dict[str, int]], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InputError, match=rf"{message} \(dataset\.verify=false"):
        load(read, "/data", name="set", counts=counts)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert len(load(read, "/data", name="set", counts=counts, verify=False)) == 8
    assert caplog.messages == [message]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"paths": np.array([*"abcdefga"])},
            "image a is there 2 times, in the no and train split",
        ),
        (
            {"labels": np.array([[c + (c > 1), c // 3] for c in CLASSES])},
            "no image has label 2 of level class, whose labels go to 5",
        ),
        (
            {"labels": np.array([[min(c, 2), 0] for c in CLASSES])},
            "1 class is in training and in test, such as label 2 of level class; dataset.disjoint=false allows it",
        ),
        (
            {"labels": np.array([[c, row % 2] for row, c in enumerate(CLASSES)])},
            "label 0 of level class is in two classes of level group: 0, such as 0.png, and 1, such as 1.png",
        ),
    ],
)
def test_load_holds_the_table_against_the_rules(
    columns: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(root: str | None) -> ImageTable:
        return table(**columns)

    with pytest.raises(InputError, match=rf"set: {message}, in /data \(dataset\.verify=false"):
        load(broken, "/data", name="set")
    with caplog.at_level(logging.WARNING):
        assert len(load(broken, "/data", name="set", verify=False)) == 8
    assert [text.removeprefix("set: ").removesuffix(", in /data") for text in caplog.messages] == [message]


def test_a_class_in_two_coarser_classes_is_named() -> None:
    names = (("lynx", "owl\n", "puma", "robin"), ("birds", "cats", "dogs"))
    labels = np.array([[3, 0], [1, 0], [0, 1], [1, 2], [1, 0], [1, 1]])
    mixed = ImageTable(np.array([*"abcdef"]), labels, np.array(["train"] * 6), ("species", "group"), names)
    *_, fault = find_faults(mixed)
    named = "label 1 (owl\\n) of level species is in two classes of level group"
    assert fault == f"{named}: 0 (birds), such as b, and 1 (cats), such as f"


def test_classes_may_be_shared_where_the_data_set_says_so() -> None:
    shared = table(labels=np.array([[min(c, 2), 0] for c in CLASSES]))
    assert len(load(lambda _: shared, "/data", name="set", disjoint=False)) == 8


# benchmarks: lists that are judged at one level alone


def benchmarks() -> ImageTable:
    """The images of class 3 and 4 are judged at level 0 and at level 1 once each; a list knows its own labels alone."""
    return table(
        paths=np.array([*"abcdefgg"]),
        labels=np.array([[c, c // 3] for c in CLASSES[:6]] + [[3, -1], [-1, 1]]),
        split=np.array([*SPLIT[:6], "query", "query"]),
        benchmark=np.array([-1] * 6 + [0, 1]),
    )


def test_a_benchmark_knows_the_labels_of_its_level_alone() -> None:
    assert load(lambda _: benchmarks(), None, name="set").counts()["query"] == {"images": 2, "class": 1, "group": 1}
    assert benchmarks().subset("query").benchmark.tolist() == [0, 1]
    assert table().benchmark.tolist() == [-1] * 8
    with pytest.raises(InputError, match=r"negative label \[-1, 1\] of g"):
        table(labels=benchmarks().labels, benchmark=np.array([-1] * 7 + [0]), paths=benchmarks().paths)
    with pytest.raises(InputError, match=r"benchmarks \[-1, 2\] for the levels"):
        table(benchmark=np.array([-1] * 7 + [2]))


def test_renumbered_labels_have_no_gap() -> None:
    names = (("a", "b", "c", "d", "e"), ("g", "h"))
    numbered = table(names=names).take(np.array([7, 2, 3])).renumber()
    assert numbered.labels.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert numbered.names == (("b", "e"), ("g", "h"))
    assert numbered.paths.tolist() == ["7.png", "2.png", "3.png"]
    assert table().renumber().names == ()


@pytest.mark.parametrize("levels", [("class", "class"), ("class", "path")])
def test_levels_need_names_of_their_own(levels: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=r"image table: the levels .* need different names, none of .*path, sha256"):
        ImageTable(np.array(["1.jpg"]), np.array([[0, 0]]), np.array(["train"]), levels)
