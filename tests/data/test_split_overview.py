"""What the splits of a data set hold: counts, sizes and copies, by hand."""

from dataclasses import replace

import numpy as np

from dml.data.copies import describe_copies
from dml.data.prepared.verification import NO_FILE, CheckedImage
from dml.data.split_overview import summarize_split
from dml.data.table import UNKNOWN, ImageTable


def make_table(rows: list[tuple[str, int, str]]) -> ImageTable:
    paths, labels, splits = zip(*rows, strict=True)
    return ImageTable(np.array(paths), np.array(labels, dtype=np.int64)[:, None], np.array(splits), ("class",))


def readable(content: str, width: int = 8, height: int = 6) -> CheckedImage:
    return CheckedImage(1, 1, 1, 1, height, width, content, "")


def test_counts_and_sizes_of_each_split() -> None:
    table = make_table(
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
    table = make_table(
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
    table = make_table([("a1", 0, "train"), ("a2", 0, "train"), ("b1", 1, "test")])
    assert not [*describe_copies(table, {path: readable(path) for path in ("a1", "a2", "b1")})]
