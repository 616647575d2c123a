"""Cells of several labels, with a declared separator."""

from pathlib import Path

import numpy as np
import pytest

from dml.data.readers.csv import read
from dml.data.splits import describe_shared_classes
from dml.data.table import UNKNOWN, ImageTable, find_faults, hold_out_classes
from dml.runtime.errors import InputError

LINES = [
    "a.png,sea|beach,train",
    "b.png, beach | sea ,train",
    "c.png,beach,val",
    "d.png,hut,test",
    "e.png,hut|tree,test",
]


def write(folder: Path, *lines: str, header: str = "path,label,split") -> Path:
    file = folder / "list.csv"
    file.write_text("\n".join([header, *lines]) + "\n")
    return file


def names_of(table: ImageTable) -> list[set[str]]:
    """The labels of each image, by the numbers of the table and the sorted names."""
    names = sorted({label for name in table.names[0] for label in name.split(table.separator)})
    return [{names[label] for label in row if label != UNKNOWN} for row in table.label_sets[:, 0].tolist()]


def test_a_class_is_a_set_of_labels(tmp_path: Path) -> None:
    table = read(write(tmp_path, *LINES), separator="|")
    assert table.names == (("beach", "beach|sea", "hut", "hut|tree"),)
    assert table.labels[:, 0].tolist() == [1, 1, 0, 2, 3]
    assert names_of(table) == [{"sea", "beach"}, {"sea", "beach"}, {"beach"}, {"hut"}, {"hut", "tree"}]
    assert table.counts()["test"] == {"images": 2, "label": 2}
    part = table.subset("test").renumber()
    assert names_of(part) == [{"hut"}, {"hut", "tree"}]
    assert part.label_sets.tolist() == [[[0, -1]], [[0, 1]]]


def test_without_a_separator_a_cell_is_one_label(tmp_path: Path) -> None:
    table = read(write(tmp_path, *LINES))
    assert table.label_sets is table.labels
    assert "sea|beach" in table.names[0]


def test_single_labels_with_a_separator_are_plain(tmp_path: Path) -> None:
    lines = [line.replace("sea|", "").replace("beach | sea", "beach").replace("|tree", "") for line in LINES]
    table = read(write(tmp_path, *lines), separator="|")
    assert table.label_sets is table.labels


def test_each_level_has_sets_of_its_own(tmp_path: Path) -> None:
    lines = ["a.png,x|y|z,1|2,train", "b.png,x,1,test"]
    table = read(write(tmp_path, *lines, header="path,level0,level1,split"), separator="|", val_fraction=0)
    assert table.label_sets.tolist() == [[[0, 1, 2], [0, 1, -1]], [[0, -1, -1], [0, -1, -1]]]


@pytest.mark.parametrize("cell", ["a||b", "|", "a|", " | a"])
def test_an_empty_label_is_named_with_its_line(tmp_path: Path, cell: str) -> None:
    with pytest.raises(InputError, match=r"list\.csv, line 3: an empty label in .*, beside the separator '\|'"):
        read(write(tmp_path, "a.png,a,train", f"b.png,{cell},test"), separator="|")


def test_whole_classes_cannot_be_drawn(tmp_path: Path) -> None:
    unsplit = [f"{row}.png,{'ab'[row % 2]}|c{row}" for row in range(8)]
    with pytest.raises(InputError, match=r"^dataset.reader.test_fraction=0.5: .*list.csv has images of several labels"):
        read(write(tmp_path, *unsplit, header="path,label"), separator="|")
    without_val = [line.replace(",val", ",train") for line in LINES]
    with pytest.raises(InputError, match=r"^dataset.reader.val_fraction=0.2: .* in a column split"):
        read(write(tmp_path, *without_val), separator="|", val_fraction=0.2)
    table = read(write(tmp_path, *LINES), separator="|")
    with pytest.raises(InputError, match=r"^dataset\.folds=2: "):
        hold_out_classes(table, folds=2)


def test_a_label_in_training_and_test_is_a_fault(tmp_path: Path) -> None:
    table = read(write(tmp_path, *LINES), separator="|")
    assert not [*find_faults(table)]
    assert describe_shared_classes(table).startswith("1 class is in training too, such as beach:")
    shared = read(write(tmp_path, *LINES, "f.png,tree|sea,test"), separator="|")
    assert [*find_faults(shared)] == [
        "1 class is in training and in test, such as label 4 (sea|tree) of level label",
    ]


def test_a_frame_has_the_same_cells() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"path": ["a", "b"], "label": ["y|x", "x"], "split": ["train", "test"]})
    table = ImageTable.from_frame(frame, separator="|")
    assert table.label_sets.tolist() == [[[0, 1]], [[0, -1]]]
    assert np.array_equal(ImageTable.from_frame(frame).labels, [[1], [0]])
