import image_tables
import numpy as np
import pytest
from numpy.typing import NDArray

from dml.data.judgments import Query, make_judged_table
from dml.data.subsets import draw_share_of_classes, take_some_classes
from dml.data.table import ImageTable
from dml.evaluation.items import check_queries


def make_table(labels: list[int], split: list[str], benchmark: list[int] | None = None) -> ImageTable:
    """Make a table of two levels, whose classes of level 1 are pairs of those of level 0."""
    fine = np.array(labels)
    lists = {} if benchmark is None else {"benchmark": np.array(benchmark)}
    return image_tables.make_table(np.stack([fine, fine // 2], axis=1), split, **lists)


def kept(table: ImageTable) -> NDArray[np.str_]:
    return table.paths


def test_the_classes_that_are_kept_are_spread():
    labels = np.arange(240)
    table = ImageTable(
        labels.astype(np.str_), np.stack([labels, labels // 120], axis=1), np.array(["train"] * 240), ("class", "group")
    )
    kept_labels = take_some_classes(table, classes=64, images=8).labels
    assert len(kept_labels) == 64
    assert np.bincount(kept_labels[:, 1]).tolist() == [32, 32]


def test_the_first_images_of_some_classes_of_each_split_are_kept():
    table = make_table([0, 0, 0, 1, 2, 3, 4, 4, 5], ["train"] * 5 + ["val"] + ["test"] * 3)
    assert kept(take_some_classes(table, classes=2, images=2)).tolist() == [
        *("0.jpg", "1.jpg", "3.jpg"),
        "5.jpg",
        *("6.jpg", "7.jpg", "8.jpg"),
    ]


def test_queries_keep_their_positives_in_the_gallery():
    table = make_table([0, 1, 5, 6, 7, 6, 5, 7], ["train", "train", "query", "query", "query", *["gallery"] * 3])
    small = take_some_classes(table, classes=2, images=1)
    queries, gallery = small.subset("query"), small.subset("gallery")
    assert queries.labels[:, 0].tolist() == [5, 6]
    assert sorted(gallery.labels[:, 0].tolist()) == [5, 6]


def test_rows_of_one_level_count_by_their_class_of_that_level():
    table = make_table([0, 1, 2, 3, 4], ["train", *["test"] * 4], [-1, 1, 1, 1, 1])
    assert kept(take_some_classes(table, classes=2, images=1)).tolist() == ["0.jpg", "1.jpg", "2.jpg"]


def test_queries_of_each_list_keep_their_positives_among_the_rows_of_every_level():
    queries = [Query(f"{level}.jpg", level, np.arange(2) + 90 - 50 * level, np.arange(0)) for level in (0, 1)]
    table = make_judged_table(queries, [f"g{i}.jpg" for i in range(100)], levels=("birds", "cars"), source="")
    for small in (take_some_classes(table, classes=2, images=2), draw_share_of_classes(table, 9)):
        assert len(small) < 15
        check_queries(small)


def test_a_small_table_is_kept_whole():
    table = make_table([0, 1, 1, 2], ["train", "train", "train", "test"])
    assert kept(take_some_classes(table, classes=5, images=5)).tolist() == table.paths.tolist()


def test_a_share_of_each_class_is_drawn_but_at_least_two_images():
    table = make_table(
        [0] * 40 + [1] * 20 + [2] * 3 + [3] + [1] * 36, ["train"] * 64 + ["query"] * 16 + ["gallery"] * 20
    )
    drawn = draw_share_of_classes(table, 25)
    sizes = {
        (split, label): int(((drawn.split == split) & (drawn.labels[:, 0] == label)).sum())
        for split, label in (("train", 0), ("train", 1), ("train", 2), ("train", 3), ("query", 1), ("gallery", 1))
    }
    assert [*sizes.values()] == [10, 5, 2, 1, 4, 5]
    assert len({*drawn.paths.tolist()}) == len(drawn) == 27
    assert drawn.paths.tolist() == draw_share_of_classes(table, 25).paths.tolist()
    assert drawn.paths.tolist() != draw_share_of_classes(table, 25, seed=1).paths.tolist()


def test_each_list_of_a_level_keeps_its_share():
    table = make_table([0] * 8 + [1] * 8, ["test"] * 16, [0] * 8 + [1] * 8)
    assert draw_share_of_classes(table, 8).benchmark.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("max_images", [None, 4, 100])
def test_a_small_data_set_stays_whole(max_images: int | None):
    table = make_table([0, 0, 1, 1], ["train"] * 4)
    assert draw_share_of_classes(table, max_images) is table
