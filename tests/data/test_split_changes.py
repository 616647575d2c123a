import numpy as np
import pytest

from dml.data.split_overview import checksum_splits, describe_changes, make_relative
from dml.data.table import ImageTable

CLASSES = ("ant", "bee", "cat", "dog", "emu")


def make_table(splits: dict[str, str], folder: str = "/data", images: int = 4) -> ImageTable:
    """Make a table of classes with some images each: {class: split}."""
    names = tuple(sorted(splits))
    labels = np.repeat(np.arange(len(names)), images)
    paths = [f"{folder}/{name}/{i}.jpg" for name in names for i in range(images)]
    split = np.repeat([splits[name] for name in names], images)
    return ImageTable(np.array(paths), labels[:, None], split, ("class",), (names,))


HALVES = dict(zip(CLASSES, ("train", "train", "val", "test", "test"), strict=True))


def test_same_table_has_no_changes_wherever_it_stands_and_however_it_is_ordered():
    before = checksum_splits(make_table(HALVES), "/data")
    moved = make_table(HALVES, "/disk/mine")
    shuffled = moved.take(np.random.default_rng(0).permutation(len(moved)))
    assert describe_changes(before, checksum_splits(shuffled, "/disk/mine")) == []


def test_a_path_that_goes_up_is_shown_without_it():
    paths = ["/data/a/../1.jpg", "/data/../2.jpg", "/data/3.jpg"]
    assert make_relative(paths, "/data") == ["1.jpg", "../2.jpg", "3.jpg"]


def test_classes_in_other_splits_are_named_first():
    after = HALVES | {"ant": "test", "bee": "test", "emu": "train"}
    changes = describe_changes(checksum_splits(make_table(HALVES)), checksum_splits(make_table(after)))
    assert changes == [
        "2 classes moved from train to test (ant, bee)",
        "1 class moved from test to train (emu)",
    ]


def test_gone_new_and_altered_classes_are_named():
    before = make_table(HALVES)
    after = make_table({name: split for name, split in HALVES.items() if name != "cat"} | {"fox": "train"})
    after = after.take(np.arange(1, len(after)))  # without the first image of ant
    assert describe_changes(checksum_splits(before), checksum_splits(after)) == [
        "1 class is gone (cat)",
        "1 class is new (fox)",
        "1 class has other images (ant: 3 instead of 4)",
    ]


@pytest.mark.parametrize("column", ["paths", "coarse label"])
def test_other_files_and_other_coarse_labels_count_as_other_images(column: str):
    before = make_table(HALVES)
    two_levels = ImageTable(
        before.paths, np.c_[before.labels, before.labels * 0], before.split, ("class", "group"), (CLASSES, ("a", "b"))
    )
    labels, paths = two_levels.labels.copy(), two_levels.paths.copy()
    if column == "paths":
        paths[0] = "/data/ant/9.jpg"
    else:
        labels[:4, 1] = 1
    after = ImageTable(paths, labels, two_levels.split, two_levels.levels, two_levels.names)
    assert describe_changes(checksum_splits(two_levels), checksum_splits(after)) == [
        "1 class has other images (ant: other files)"
    ]


def test_many_classes_are_counted_and_a_few_named():
    names = [f"c{i:03}" for i in range(1000)]
    before, after = (make_table(dict.fromkeys(names, split), images=1) for split in ("train", "test"))
    assert describe_changes(checksum_splits(before), checksum_splits(after)) == [
        "1,000 classes moved from train to test (c000, c001, c002, ... 997 more)"
    ]
