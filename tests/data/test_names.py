import os
from pathlib import Path

import pytest
from image_tables import make_table

from dml.data.readers import folder
from dml.data.table import ImageTable, check_paths
from dml.runtime.errors import InputError

ODD = "caf\udce9"
"""What ``os.listdir`` gives of a name in Latin 1."""


def table(paths: list[str], names: tuple[str, ...] = ("owl",)) -> ImageTable:
    return make_table([0] * len(paths), "train", paths, names=(names,), source="mine.csv")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{ODD}.jpg", r"the path 'caf\\xe9\.jpg' in row 1 of mine\.csv isn't UTF-8, as results are; rename the file"),
        ("\ud800.jpg", r"the path '\\ud800\.jpg' in row 1 of mine\.csv isn't UTF-8"),
        ("a\0b.jpg", r"the path 'a\\x00b\.jpg' in row 1 of mine\.csv holds a NUL byte"),
        ("", r"the path '' in row 1 of mine\.csv is empty"),
        ("images/", r"the path 'images/' in row 1 of mine\.csv is a folder's; give an image's"),
    ],
)
def test_a_path_that_is_refused(path: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^image table: {message}"):
        table(["1.jpg", path, "2.jpg"])


def test_a_row_far_down() -> None:
    paths = [f"{i}.jpg" for i in range(50_000)]
    check_paths(paths, "")
    paths[40_000] = ODD
    with pytest.raises(InputError, match=f"in row {40_000} isn't UTF-8"):
        check_paths(paths, "")


@pytest.mark.parametrize(
    "path", ["a/\nb.jpg", "a\n\nb.jpg", "\n.jpg", "a.jpg\n", "😀 [/red]\x1b[31m.jpg", "-x,'\"|`$%"]
)
def test_other_odd_paths_are_taken(path: str) -> None:
    assert table(["1.jpg", path]).paths[1] == path
    assert len(table([])) == 0


def test_a_class_name_that_is_refused() -> None:
    with pytest.raises(InputError, match=r"^image table: the class 'caf\\xe9' of mine\.csv isn't UTF-8; rename it"):
        table(["1.jpg"], ("owl", ODD))


def test_a_folder_of_ones_own_with_such_a_name(tmp_path: Path) -> None:
    for name in (b"owl", b"robin", b"caf\xe9"):
        path = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(path)
        Path(os.fsdecode(path), "1.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"caf\\xe9/1\.jpg' in row 0 of .* isn't UTF-8"):
        folder.read(tmp_path)
