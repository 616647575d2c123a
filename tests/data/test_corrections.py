"""Corrections of a table: what each action does, and mistakes in one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dml.data.corrections import Correction, apply_corrections, read_corrections
from dml.data.table import UNKNOWN, ImageTable
from dml.runtime.errors import InputError

ROOT = "/data/mine"


def make_table() -> ImageTable:
    """Four classes of two levels: robin and wren (train), owl (test), lynx (test)."""
    fine = [0, 0, 0, 1, 1, 2, 2, 3, 3]
    return ImageTable(
        paths=np.array([f"/data/mine/{row}.jpg" for row in range(len(fine))]),
        labels=np.array([[label, int(label == 3)] for label in fine]),
        split=np.array(["train"] * 5 + ["test"] * 4),
        levels=("species", "group"),
        names=(("robin", "wren", "owl", "lynx"), ("birds", "cats")),
    )


def list_classes(table: ImageTable) -> dict[str, tuple[str, str, str]]:
    """{image: (species, group, split)}"""
    return {
        Path(path).stem: (table.names[0][label[0]], table.names[1][label[1]], split)
        for path, label, split in zip(table.paths, table.labels.tolist(), table.split.tolist(), strict=True)
    }


def apply(*corrections: Correction, table: ImageTable | None = None) -> dict[str, tuple[str, str, str]]:
    return list_classes(apply_corrections(table or make_table(), corrections)[0])


def test_dropped_images_and_classes_are_gone_and_labels_have_no_gap() -> None:
    table, counts = apply_corrections(
        make_table(), [Correction("drop", "/data/mine/0.jpg"), Correction("drop", label="wren")]
    )
    assert list_classes(table) == {
        name: classes for name, classes in list_classes(make_table()).items() if name not in "034"
    }
    assert np.unique(table.labels[:, 0]).tolist() == [0, 1, 2]
    assert table.names[0] == ("robin", "owl", "lynx")
    assert counts.describe() == "dropped 3 images, relabeled 0, merged 0 classes into others"


@pytest.mark.parametrize(("in_table", "in_file"), [("\u00eb", "e\u0308"), ("e\u0308", "\u00eb")])
def test_a_class_composed_and_decomposed_is_one_and_paths_stay(in_table: str, in_file: str, tmp_path: Path) -> None:
    table = replace(make_table(), names=(("robin", in_table, "owl", "lynx"), ("birds", "cats")))
    paths = table.paths.tolist()
    paths[0] = f"/data/mine/{in_file}.jpg"
    file = tmp_path / "corrections.csv"
    file.write_text(f"action,path,label,other_label\nrelabel,{paths[0]},robin,{in_file}\n", encoding="utf-8")
    relabeled, _ = apply_corrections(replace(table, paths=np.array(paths)), read_corrections(file))
    assert relabeled.labels[0, 0] == 1


def test_a_new_label_brings_the_coarser_class_and_the_split_of_the_class() -> None:
    relabeled = Correction("relabel", "/data/mine/0.jpg", label="robin", other_label="wren", new_label="lynx")
    table, counts = apply_corrections(make_table(), [relabeled])
    assert list_classes(table) == list_classes(make_table()) | {"0": ("lynx", "cats", "test")}
    assert counts.moved == 1
    suggested = replace(relabeled, new_label="")
    assert apply(suggested)["0"] == ("wren", "birds", "train")


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_images_that_change_places_change_splits_in_any_order(is_whole: bool, is_reversed: bool) -> None:
    """The class of robins is in train, and that of owls in test, whoever came from where."""
    robins, owls = (["0", "1", "2"], ["5", "6"]) if is_whole else (["0"], ["5"])
    swapped = [
        *(Correction("relabel", f"/data/mine/{name}.jpg", label="robin", new_label="owl") for name in robins),
        *(Correction("relabel", f"/data/mine/{name}.jpg", label="owl", new_label="robin") for name in owls),
    ]
    table = make_table()
    if is_reversed:
        table = table.take(np.arange(len(table))[::-1])
    expected = list_classes(table) | dict.fromkeys(robins, ("owl", "birds", "test"))
    expected |= dict.fromkeys(owls, ("robin", "birds", "train"))
    assert apply(*swapped, table=table) == expected


def test_an_image_of_one_level_that_comes_into_training_gets_all_labels() -> None:
    table = make_table()
    labels = table.labels.copy()
    labels[5:7, 1] = UNKNOWN
    one_level = replace(table, labels=labels, benchmark=np.array([-1] * 5 + [0, 0, 1, 1]))
    after, counts = apply_corrections(one_level, [Correction("relabel", "/data/mine/5.jpg", new_label="wren")])
    assert list_classes(after)["5"] == ("wren", "birds", "train")
    assert (after.benchmark[5], counts.moved) == (-1, 1)


def test_spaces_around_a_path_are_of_its_name_or_were_typed() -> None:
    table = make_table()
    table.paths[0] = "/data/mine/0.jpg "
    dropped = (Correction("drop", "/data/mine/0.jpg "), Correction("drop", " /data/mine/1.jpg"))
    assert list_classes(make_table()).keys() - apply(*dropped, table=table).keys() == {"0", "1"}


@pytest.mark.parametrize("root", ["mine", "{folder}/mine", "mine.zip", "{folder}/mine.zip"])
def test_paths_are_relative_or_absolute_whatever_the_root_is(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = root.format(folder=tmp_path)
    if root.endswith(".zip"):
        Path(root).touch()
    else:
        Path(root).mkdir()
    table = make_table()
    table = replace(table, paths=np.array([f"{root}/birds/{row}.jpg" for row in range(len(table))]))
    absolute = tmp_path / Path(root).name
    paths = ["birds/0.jpg", "./birds/1.jpg", f"{absolute}/birds/2.jpg", f"{absolute}/./birds/../birds/3.jpg"]
    corrected, counts = apply_corrections(table, [Correction("drop", path) for path in paths], root)
    assert counts.dropped == 4
    assert list_classes(make_table()).keys() - list_classes(corrected).keys() == {"0", "1", "2", "3"}
    with pytest.raises(InputError, match=f"the data set has no image '{tmp_path}/birds/0.jpg'"):
        apply_corrections(table, [Correction("drop", f"{tmp_path}/birds/0.jpg")], root)


def test_merged_classes_take_the_name_of_the_first_through_any_chain() -> None:
    merged = [
        Correction("same_class", label="robin", other_label="wren"),
        Correction("same_class", label="wren", other_label="owl"),
    ]
    for order in (merged, merged[::-1]):
        after = apply(*order, Correction("relabel", "/data/mine/8.jpg", new_label="owl"))
        assert {after[str(row)] for row in (*range(7), 8)} == {("robin", "birds", "train")}
        assert after["7"] == ("lynx", "cats", "test")


def test_lines_without_an_action_or_with_keep_change_nothing() -> None:
    undecided = [Correction("", "/none.jpg", label="none"), Correction("keep", "/data/mine/0.jpg")]
    assert apply(*undecided) == list_classes(make_table())


def test_unknown_labels_stay_unknown() -> None:
    table = make_table()
    labels = table.labels.copy()
    labels[8, 0] = UNKNOWN
    benchmark = np.array([-1] * 8 + [1])
    after, _ = apply_corrections(
        replace(table, labels=labels, benchmark=benchmark), [Correction("same_class", label="robin", new_label="wren")]
    )
    assert after.labels[8].tolist() == [UNKNOWN, 1]


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        (Correction("drop", "10.jpg"), "the data set has no image '10.jpg'"),
        (Correction("drop"), "drop needs an image in the column path, or a single class in label"),
        (Correction("drop", label="robin", other_label="wren"), "drop needs an image in the column path"),
        (Correction("drop", label="robbin"), "no species is called 'robbin'; nearest: robin"),
        (Correction("relabel", "/data/mine/0.jpg", new_label="wrem"), "no species is called 'wrem'; nearest: wren"),
        (Correction("relabel", "/data/mine/0.jpg"), "relabel needs a class in new_label or other_label"),
        (Correction("relabel", new_label="wren"), "relabel needs an image in the column path"),
        (
            Correction("relabel", "/data/mine/0.jpg", label="wren", new_label="owl"),
            "/data/mine/0.jpg is of the class 'robin', not 'wren'; the data has changed since the audit",
        ),
        (Correction("same_class", new_label="wren"), "same_class needs the class that stays in the column label"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_name_the_line(correction: Correction, message: str) -> None:
    with pytest.raises(InputError) as error:
        apply(replace(correction, place="audit.csv, line 3"))
    assert str(error.value).startswith("audit.csv, line 3: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_contradictions_are_refused() -> None:
    relabeled = Correction("relabel", "/data/mine/0.jpg", new_label="wren")
    with pytest.raises(InputError, match=r"0\.jpg has two new classes"):
        apply(relabeled, replace(relabeled, new_label="owl"))
    with pytest.raises(InputError, match=r"0\.jpg is both dropped and relabeled"):
        apply(relabeled, Correction("drop", "/data/mine/0.jpg"))
    with pytest.raises(InputError, match="no image is left"):
        apply(*(Correction("drop", label=name) for name in make_table().names[0]))


def test_a_file_is_read_with_any_separator_and_its_faults_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "audit.csv"
    for separator in ",;\t":
        file.write_text(
            separator.join(("issue", "path", "action", "new_label"))
            + "\n\n"
            + separator.join(("doubtful_label", "a.jpg", "relabel", '"wren"'))
            + "\n"
        )
        assert read_corrections(file) == [
            Correction("relabel", "a.jpg", new_label="wren", place=f"{file}, line 3"),
        ]
    file.write_text('path,action\n" lynx/0.jpg",drop\n')
    assert read_corrections(file)[0].path == " lynx/0.jpg"  # the folder's name begins with a space
    for text, message in (
        ("path,action\na.jpg,remove\n", "line 2: unknown action 'remove'; the actions are keep, drop, relabel"),
        ("path,new_label\na.jpg,x\n", "line 1: no column 'action'"),
        ("path,action\na.jpg\n", "line 2: 1 cells, the header has 2"),
        ("", "line 1: no column 'action'"),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as error:
            read_corrections(file)
        assert message in str(error.value)
    with pytest.raises(InputError, match=r"dataset.corrections=/none.csv: no such file"):
        read_corrections("/none.csv")
