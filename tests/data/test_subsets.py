import numpy as np
from numpy.typing import NDArray

from dml.data.subsets import take_first_classes
from dml.data.table import ImageTable


def make_table(labels: list[int], split: list[str], benchmark: list[int] | None = None) -> ImageTable:
    """Make a table of two levels, whose classes of level 1 are pairs of those of level 0."""
    fine = np.array(labels)
    return ImageTable(
        np.array([f"{i}.jpg" for i in range(len(labels))]),
        np.stack([fine, fine // 2], axis=1),
        np.array(split),
        ("class", "group"),
        benchmark=np.array([] if benchmark is None else benchmark, dtype=np.int64),
    )


def kept(table: ImageTable) -> NDArray[np.str_]:
    return table.paths


def test_the_first_images_of_the_first_classes_of_each_split_are_kept():
    table = make_table([0, 0, 0, 1, 2, 3, 4, 4, 5], ["train"] * 5 + ["val"] + ["test"] * 3)
    assert kept(take_first_classes(table, classes=2, images=2)).tolist() == [
        *("0.jpg", "1.jpg", "3.jpg"),
        "5.jpg",
        *("6.jpg", "7.jpg", "8.jpg"),
    ]


def test_queries_keep_their_positives_in_the_gallery():
    table = make_table([0, 1, 5, 6, 7, 6, 5, 7], ["train", "train", "query", "query", "query", *["gallery"] * 3])
    small = take_first_classes(table, classes=2, images=1)
    queries, gallery = small.subset("query"), small.subset("gallery")
    assert queries.labels[:, 0].tolist() == [5, 6]
    assert sorted(gallery.labels[:, 0].tolist()) == [5, 6]


def test_rows_of_one_level_count_by_their_class_of_that_level():
    table = make_table([0, 1, 2, 3, 4], ["train", *["test"] * 4], [-1, 1, 1, 1, 1])
    assert kept(take_first_classes(table, classes=2, images=1)).tolist() == ["0.jpg", "1.jpg", "2.jpg"]


def test_a_small_table_is_kept_whole():
    table = make_table([0, 1, 1, 2], ["train", "train", "train", "test"])
    assert kept(take_first_classes(table, classes=5, images=5)).tolist() == table.paths.tolist()
