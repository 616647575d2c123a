"""What the splits of a data set hold: counts, sizes and copies, by hand, and what has changed in them."""

from dataclasses import replace

import numpy as np
import pytest
from image_tables import make_table

from dml.data.overview import checksum_splits, describe_changes, describe_copies, make_relative, summarize_split
from dml.data.prepared.verification import NO_FILE, CheckedImage
from dml.data.table import UNKNOWN, ImageTable


def make_rows(rows: list[tuple[str, int, str]]) -> ImageTable:
    paths, labels, splits = zip(*rows, strict=True)
    return make_table(labels, splits, paths)


def readable(content: str, width: int = 8, height: int = 6) -> CheckedImage:
    return CheckedImage(1, 1, 1, 1, height, width, content, "")


def test_counts_and_sizes_of_each_split() -> None:
    table = make_rows(
        [("a1", 0, "train"), ("a2", 0, "train"), ("a3", 0, "train"), ("b1", 1, "train"), ("c1", 2, "test")]
    )
    images = {
        "a1": readable("x", 100, 20),
        "a2": readable("x", 30, 40),
        "a3": readable("y", 50, 60),
        "b1": CheckedImage(1, 1, 1, 1, 0, 0, "", "broken"),
        "c1": CheckedImage(-1, -1, -1, -1, 0, 0, "", NO_FILE),
    }
    train, test = (" ".join(summarize_split(table.subset(split), images).values()) for split in ("train", "test"))
    assert train == "4 2 1 2 3 50x40 30x40 1 0 1"
    assert test == "1 1 1 1 1 0x0 0x0 0 1 0"


def test_an_image_of_several_lists_counts_once() -> None:
    labels = np.array([[0, 0], [0, 0], [1, 0]])
    table = ImageTable(
        np.array(["a", "a", "b"]), labels, np.array(["test"] * 3), ("fine", "coarse"), benchmark=np.array([0, 1, 0])
    )
    overview = summarize_split(table, {"a": readable("x"), "b": readable("y")})
    assert [overview[name] for name in ("images", "classes", "largest class", "copies")] == ["2", "2", "1", "0"]


def test_copies_across_splits_are_told_with_an_example() -> None:
    table = make_rows(
        [("a1", 0, "train"), ("a2", 0, "train"), ("v1", 1, "val"), ("q1", 2, "query"), ("g1", 2, "gallery")]
    )
    contents = {"a1": "x", "a2": "", "v1": "", "q1": "x", "g1": "x"}
    images = {path: readable(content) for path, content in contents.items()}
    lines = [*describe_copies(table, images)]
    excluding = replace(table, content=np.array([UNKNOWN, UNKNOWN, UNKNOWN, 0, 0]))  # the query excludes its copy
    assert [*describe_copies(excluding, images)] == [*lines[:2], lines[3]]
    assert lines == [
        "1 file in query with the content of a file in train, such as q1 is a1; the test then flatters what the "
        "training has seen",
        "1 file in gallery with the content of a file in train, such as g1 is a1; the test then flatters what the "
        "training has seen",
        "1 file in gallery with the content of a file in query, such as g1 is q1; "
        "dataset.queries_in_gallery=true excludes each copy from the ranking of its query",
        "3 files with the content of a file of another class, such as a1",
    ]


def test_a_sound_data_set_has_no_line() -> None:
    table = make_rows([("a1", 0, "train"), ("a2", 0, "train"), ("b1", 1, "test")])
    assert not [*describe_copies(table, {path: readable(path) for path in ("a1", "a2", "b1")})]


CLASSES = ("ant", "bee", "cat", "dog", "emu")


def make_classes(splits: dict[str, str], folder: str = "/data", images: int = 4) -> ImageTable:
    """Make a table of classes with some images each: {class: split}."""
    names = tuple(sorted(splits))
    labels = np.repeat(np.arange(len(names)), images)
    paths = [f"{folder}/{name}/{i}.jpg" for name in names for i in range(images)]
    split = np.repeat([splits[name] for name in names], images)
    return ImageTable(np.array(paths), labels[:, None], split, ("class",), (names,))


HALVES = dict(zip(CLASSES, ("train", "train", "val", "test", "test"), strict=True))


def test_same_table_has_no_changes_wherever_it_stands_and_however_it_is_ordered():
    before = checksum_splits(make_classes(HALVES), "/data")
    moved = make_classes(HALVES, "/disk/mine")
    shuffled = moved.take(np.random.default_rng(0).permutation(len(moved)))
    assert describe_changes(before, checksum_splits(shuffled, "/disk/mine")) == []


def test_a_path_that_goes_up_is_shown_without_it():
    paths = ["/data/a/../1.jpg", "/data/../2.jpg", "/data/3.jpg"]
    assert make_relative(paths, "/data") == ["1.jpg", "../2.jpg", "3.jpg"]


def test_classes_in_other_splits_are_named():
    after = HALVES | {"ant": "test", "bee": "test", "emu": "train"}
    changes = describe_changes(checksum_splits(make_classes(HALVES)), checksum_splits(make_classes(after)))
    assert changes == [
        "2 classes moved from train to test (ant, bee)",
        "1 class moved from test to train (emu)",
    ]


def test_gone_new_and_altered_classes_are_named():
    before = make_classes(HALVES)
    after = make_classes({name: split for name, split in HALVES.items() if name != "cat"} | {"fox": "train"})
    after = after.take(np.arange(1, len(after)))  # without the first image of ant
    assert describe_changes(checksum_splits(before), checksum_splits(after)) == [
        "1 class with other images (ant)",
        "1 class gone (cat)",
        "1 class new (fox)",
    ]


@pytest.mark.parametrize("column", ["paths", "coarse label"])
def test_other_files_and_other_coarse_labels_count_as_other_images(column: str):
    before = make_classes(HALVES)
    two_levels = ImageTable(
        before.paths, np.c_[before.labels, before.labels * 0], before.split, ("class", "group"), (CLASSES, ("a", "b"))
    )
    labels, paths = two_levels.labels.copy(), two_levels.paths.copy()
    if column == "paths":
        paths[0] = "/data/ant/9.jpg"
    else:
        labels[:4, 1] = 1
    after = ImageTable(paths, labels, two_levels.split, two_levels.levels, two_levels.names)
    assert describe_changes(checksum_splits(two_levels), checksum_splits(after)) == ["1 class with other images (ant)"]


def test_many_classes_are_counted_and_a_few_named():
    names = [f"c{i:03}" for i in range(1000)]
    before, after = (make_classes(dict.fromkeys(names, split), images=1) for split in ("train", "test"))
    assert describe_changes(checksum_splits(before), checksum_splits(after)) == [
        "1,000 classes moved from train to test (c000, c001, c002, ... 997 more)"
    ]
