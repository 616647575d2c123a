from pathlib import Path

import pytest
from trees.csv import TREE
from trees.tree import write_lines

from dml.data.images import read_image
from dml.data.readers.csv import read, read_listed
from dml.runtime.errors import InputError


def written(folder: Path, *lines: str) -> Path:
    write_lines(folder / "mine.csv", lines)
    return folder / "mine.csv"


def test_levels_and_splits(tmp_path: Path) -> None:
    TREE.build(tmp_path)
    table = read(tmp_path / "mine.csv")
    assert table.levels == ("level0", "level1")
    assert table.names == (("lynx", "owl", "puma", "robin", "wren"), ("birds", "cats"))
    assert table.labels.tolist() == [[3, 0], [3, 0], [4, 0], [0, 1], [1, 0], [1, 0], [1, 0], [2, 1], [2, 1]]
    assert table.split.tolist() == ["train"] * 4 + ["query", "gallery", "gallery", "query", "gallery"]
    assert table.paths[3] == f"{tmp_path}/images/4, left.jpg"
    assert all(read_image(path).shape == (3, 8, 12) for path in table.paths.tolist())


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators(separator: str, tmp_path: Path) -> None:
    lines = [separator.join(cells) for cells in (["label", " path"], ["ä;b,c\td".replace(separator, "-"), "1.jpg"])]
    table = read(written(tmp_path, *lines, separator.join(['"a ""b"""', "2.jpg"])))
    assert table.paths.tolist() == [f"{tmp_path}/1.jpg", f"{tmp_path}/2.jpg"]
    assert set(table.names[0]) == {"ä;b,c\td".replace(separator, "-"), 'a "b"'}


def test_paths_are_relative_to_the_file_or_absolute(tmp_path: Path) -> None:
    file = written(tmp_path, "path,label", "/elsewhere/1.jpg,a", "../2.jpg,b", "some.zip/3.jpg,c")
    assert read(file).paths.tolist() == ["/elsewhere/1.jpg", f"{tmp_path}/../2.jpg", f"{tmp_path}/some.zip/3.jpg"]


def test_an_image_with_a_relative_and_an_absolute_path_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "mine", "path,label,split", "1.jpg,a,train", f"{tmp_path}/mine/1.jpg,a,test")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"mine/mine\.csv, line 3: .*/mine/1\.jpg stands in line 2 already$"):
        read("mine/mine.csv")


def test_a_path_may_lead_through_a_link_and_up_again(tmp_path: Path) -> None:
    for name, folder in (("there", tmp_path / "elsewhere"), ("wrong", tmp_path / "mine")):
        (folder / "photos").mkdir(parents=True)
        (folder / "1.jpg").write_text(name)
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "elsewhere" / "photos")
    table = read(written(tmp_path / "mine", "path,label", "linked/../1.jpg,a", "2.jpg,b"))
    assert Path(table.paths[0]).read_text() == "there"


def test_labels_are_the_sorted_names_whatever_the_order_of_lines(tmp_path: Path) -> None:
    """Strings all of them: 10 comes before 9."""
    lines = [f"{i}.jpg,{label}" for i, label in enumerate(["9", "10", "b", "9", "a"])]
    table, turned = (read(written(tmp_path, "path,label", *of)) for of in (lines, lines[::-1]))
    assert table.names == turned.names == (("10", "9", "a", "b"),)
    assert table.labels[:, 0].tolist() == turned.labels[::-1, 0].tolist() == [1, 0, 3, 1, 2]
    assert table.split.tolist() == turned.split[::-1].tolist()


def test_columns_of_other_names(tmp_path: Path) -> None:
    file = written(tmp_path, "image,class,path,set", "1.jpg,a,x,train", "2.jpg,b,y,test")
    columns = {"path": "image", "label": "class", "split": "set"}
    table = read(file, columns=columns)
    assert table.paths.tolist() == [f"{tmp_path}/1.jpg", f"{tmp_path}/2.jpg"]
    assert table.names == (("a", "b"),)
    assert table.split.tolist() == ["train", "test"]
    with pytest.raises(InputError, match=r"^dataset\.reader\.columns: .*mine\.csv has no column 'klass' among"):
        read(file, columns=columns | {"label": "klass"})
    numbered = written(tmp_path, "0,1", "1.jpg,a", "2.jpg,b")
    assert read(numbered, columns={"path": 0, "label": 1}).names == (("a", "b"),)  # type: ignore[dict-item]
    with pytest.raises(InputError, match=r"^dataset\.reader\.columns: unknown column 'labels'; path, label, level0"):
        read(file, columns={"labels": "class"})
    with pytest.raises(InputError, match="two of them are the same column"):
        read(numbered, columns={"path": "0", "label": "0"})


@pytest.mark.parametrize(
    ("encoding", "likely"), [("latin-1", "cp1252"), ("cp1252", "cp1252"), ("utf-16", "utf-16"), ("utf-8-sig", "")]
)
def test_other_encodings(encoding: str, likely: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("path,label\n1.jpg,Zoë\n2.jpg,b\n", encoding=encoding)
    if likely:
        line = rf"mine\.csv: not in UTF-8, it seems to be in {likely}; .*dataset\.reader\.encoding={likely} reads it\)$"
        with pytest.raises(InputError, match=line):
            read(file)
    assert read(file, encoding=likely or "utf-8").names == (("Zoë", "b"),)
    if encoding == "utf-8-sig":
        assert read(file, encoding="U8").levels == read(file).levels  # without the byte order mark
        with pytest.raises(InputError, match=r"not in ASCII, it seems to be in utf-8;"):
            read(file, encoding="ascii")
    with pytest.raises(InputError, match=r"mine\.csv: unknown encoding: klingon"):
        read(file, encoding="klingon")


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_ends_and_those_within_quotes(line_end: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(line_end.join(["path,label", '"1\r.jpg","a\nb"', '"2\r\n.jpg",c', ""]), newline="")
    table = read(file)
    assert table.paths.tolist() == [f"{tmp_path}/1\r.jpg", f"{tmp_path}/2\r\n.jpg"]
    assert table.names == (("a\nb", "c"),)


COLUMNS = [
    ("is_valid", "False False True", "train train val"),  # fastai
    ("is_train", "1 1 0", "train train test"),
    ("is_training_img", "1 1 0", "train train test"),  # CUB-200-2011
    ("train", "True True False", "train train test"),
    ("is_train,is_val", "1,0 0,1 0,0", "train val test"),
    ("is_query,is_gallery", "0,0 1,0 0,1", "train query gallery"),
    ("mode", "train eval test", "train val test"),
    ("Usage", "Training PublicTest PrivateTest", "train val test"),  # Kaggle, FER-2013
    ("dataset", "train_images test_images val_images", "train test val"),
    ("evaluation_status", "train query gallery", "train query gallery"),  # In-shop Clothes Retrieval
    ("set", "train query test", "train query gallery"),
    ("set", "train reference queries", "train gallery query"),
    ("fold", "validation train test", "val train test"),
    ("anything", "train valid test", "train val test"),
    ("split", "train2017 val2017 test2017", "train val test"),
    ("split,is_query,is_gallery", "train,, validation,True,False validation,False,True", "train query gallery"),
    ("split,is_query,is_gallery", "train,, validation,True,True validation,True,True", "train test test"),
    ("split,weight,is_train", "test,1,1 train,0,0 train,0,1", "test train train"),
]
"""Columns that say the split of three rows, their cells, and the splits."""


@pytest.mark.parametrize(("columns", "values", "splits"), COLUMNS)
def test_columns_that_say_the_split(
    columns: str, values: str, splits: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Classes drawn at random would mix the training and the test that the column tells."""
    rows = [f"{i}.jpg,{i},{value}" for i, value in enumerate(values.split())]
    file = written(tmp_path, f"image,label,{columns}", *rows)
    expected = splits.split()
    assert read(file, columns={"path": "image"}, test_fraction=None).split.tolist() == expected
    name, *flags = columns.split(",")
    names = name if name == "split" and flags[:1] != ["is_query"] else " and ".join([name, *flags])
    option = "'dataset.reader.columns={path: image, split: null}' passes over it"
    line = f"{file}: the splits are those of the column {names}; {option}"
    assert caplog.messages[:1] == ([] if names == "split" else [line]) or expected[1:] == ["val", "val"]
    if not flags:
        assert read(file, columns={"path": "image", "split": name}, test_fraction=None).split.tolist() == expected
    passed_over = read(file, columns={"path": "image", "split": None}, test_fraction=None)
    assert passed_over.split.tolist() == ["test"] * 3


@pytest.mark.parametrize(
    ("columns", "values", "fault"),
    [
        ("split", "train seen test", "unknown split 'seen'; the splits are .*; write one of them into"),
        ("split", "0 1 2", "unknown split '0'; the splits are .*; write one of them into"),
        ("partition", "0 1 2", "unknown split '0'; the splits are .*; write one of them into"),  # CelebA
        ("Partition", "Training other test", "unknown split 'other'; the splits are .*; write one of them into"),
        ("phase", "query - test", "unknown split '-'; the splits are .*; write one of them into"),
        ("is_train,is_test", "1,0 1,1 0,1", "unknown split 'is_train is_test'; the splits are .*; write one of them"),
    ],
)
def test_a_split_that_is_not_known(columns: str, values: str, fault: str, tmp_path: Path) -> None:
    rows = [f"{i}.jpg,{i},{value}" for i, value in enumerate(values.split())]
    file = written(tmp_path, f"path,label,{columns}", *rows)
    remedy = (
        rf"the column {columns.replace(',', ' and ')}, or 'dataset\.reader\.columns=\{{split: null\}}' passes over it"
    )
    with pytest.raises(InputError, match=rf"mine\.csv, line \d: {fault}.* {remedy}$"):
        read(file)
    assert read(file, columns={"split": None}).counts().keys() == {"train", "test"}
    assert read_listed(file).split.tolist() == [""] * 3


def test_folders_in_the_paths_say_the_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = ["a/train/1.jpg", "a/train/2.jpg", "b/test/1.jpg", "/elsewhere/train/3.jpg"]
    file = written(tmp_path / "test", "path,label", *(f"{path},{i}" for i, path in enumerate(paths[:3])))
    assert read(file).split.tolist() == ["train", "train", "test"]
    assert caplog.messages == [f"{file}: the splits are those that folders in the paths are named like"]
    file = written(
        tmp_path / "test", "path,label", *(f"{path},{i}" for i, path in enumerate([*paths[:3], "c/x/1.jpg"]))
    )
    with pytest.raises(InputError, match=r"mine\.csv: .*/c/x/ stands beside test/ and train/; beside a split there"):
        read(file)
    others = [f"a/{name}/1.jpg,{name}" for name in ("bus", "train", "test tube")]
    assert read(written(tmp_path / "test", "path,label", *others)).counts().keys() == {"train", "test"}


def test_labels_that_mean_that_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["nan", "NaN", "None", "NULL", "null", "N/A", "#N/A", "-", "NA", "<NA>", "nan"]
    read(written(tmp_path, "path,label", *(f"{i}.jpg,{name}" for i, name in enumerate([*names, "nanny", "b"]))))
    (message,) = caplog.messages
    assert "mine.csv: the class of 11 images is #N/A, -, <NA>, N/A, NA, NULL, NaN, None, nan, as if it" in message


@pytest.mark.parametrize(
    "column",
    [
        *("set,a,b,c", "phase,train,train,train", "fold,train,test,2", "weight,,,", "fold,0,1,2", "set,1,0,1"),
        *("text,a train,a test,a bus", "is_good,1,0,1", "mode,L,RGB,L", "usage,free,paid,paid", "test,,,"),
    ],
)
def test_other_columns_are_no_splits(column: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name, *values = column.split(",")
    rows = [f"{i}.jpg,{i},{value}" for i, value in enumerate(values)]
    assert read(written(tmp_path, f"path,label,{name}", *rows)).counts().keys() == {"train", "test"}
    assert not caplog.messages


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["file,label"],
            r"line 1: no column 'path' among 'file', 'label'; .*\{path: NAME\} in dataset\.reader\.columns",
        ),
        (["path"], "line 1: no column 'label' among 'path'"),
        ([], "line 1: empty; give a"),
        (["path,level0,level2"], "line 1: no column 'level1'"),
        (["path,label,path"], "line 1: the column path is there twice"),
        (["path,label"], "no line below the header"),
        (["path,label", "1.jpg,a", "2.jpg"], "line 3: 1 cell, the header has 2"),
        (["path,label", "", "1.jpg, "], "line 3: an empty cell in the column label"),
        (["path,label", "1.jpg,a", "2.jpg,b", "x/../1.jpg,b"], r"line 4: x/\.\./1\.jpg stands in line 2 already"),
        (["path,label", '"1.jpg"x,a'], "line 2: ',' expected after '\"'"),
    ],
)
def test_other_files(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"mine\.csv(, |: ){message}"):
        read(written(tmp_path, *lines))


def test_other_roots(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dataset\.root: no value; give dataset\.root=FILE, the path of a \.csv file"):
        read(None)
    with pytest.raises(InputError, match=r"dataset\.root=.*/none\.csv: no such file; give the path"):
        read(tmp_path / "none.csv")
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"a\.csv: not a text file"):
        read(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("path,label\n")
    (tmp_path / "photos" / "robin").mkdir(parents=True)
    with pytest.raises(InputError, match=r"photos: no \.csv file in it; .*; dataset=folder reads a folder for each"):
        read(tmp_path / "photos")
    with pytest.raises(InputError, match=r"robin: no \.csv file in it; give .*\(docs/own_data\.md\)$"):
        read(tmp_path / "photos" / "robin")
    with pytest.raises(InputError, match=r"2 \.csv files in it; give the path of a \.csv file of your own"):
        read(tmp_path)
