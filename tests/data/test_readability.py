import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from image_tables import make_table
from trees.tree import write_images

from dml.data.contents import read_content
from dml.data.images import ImageLimits
from dml.data.overview import check_readability, find_missing
from dml.data.table import ImageTable
from dml.runtime.errors import InputError


def table(paths: list[str], split: list[str] | None = None) -> ImageTable:
    return make_table(np.arange(len(paths)) // 2, split or ["train", "test"] * (len(paths) // 2), paths)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    names = [f"{name}/{i}.png" for name in "ab" for i in range(20)]
    write_images(tmp_path, names)
    return [f"{tmp_path}/{name}" for name in names]


def refused(paths: list[str], number: int = 16, **settings: object) -> str:
    with pytest.raises(InputError) as error:
        check_readability(table(paths), number, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_readable_images_are_passed(paths: list[str]) -> None:
    check_readability(table(paths), 16)
    check_readability(table(paths[:2]), 1)


def test_missing_files_are_counted_and_the_first_is_named(paths: list[str]) -> None:
    for path in (paths[3], paths[21]):
        Path(path).unlink()
    assert refused(paths, prepare_arguments="dataset=csv dataset.root=mine.csv") == (
        f"2 of 40 image files missing, the first: {paths[3]}; data.on_corrupt=skip leaves them out; "
        "dml prepare dataset=csv dataset.root=mine.csv lists all"
    )
    Path(paths[3]).write_bytes(b"")
    line = refused(paths)
    assert line.startswith(f"1 of 40 image files missing, the first: {paths[21]}")
    assert line.endswith("; data.on_corrupt=skip leaves them out")


def test_a_heif_image_is_tried_where_nothing_reads_it(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("overview", "images"):
        monkeypatch.setattr(f"dml.data.{module}.reads_heif", lambda: False)
    renamed = [str(Path(path).with_suffix(".HEIC")) for path in paths[:5]]
    for path in renamed:
        Path(path).write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    assert ".HEIC: a HEIF image; pip install 'dml-retrieval[heif]' reads it" in refused(
        [*paths[5:], *renamed], number=1
    )


def test_images_that_cannot_be_decoded_are_counted(paths: list[str]) -> None:
    for path in paths[10:]:
        Path(path).write_bytes(b"not an image")
    folder = re.escape(os.path.dirname(paths[0]))
    numbers = re.match(
        rf"(\d+) of 32 images that were tried can't be read, the first: {folder}/\d+\.png: "
        r"cannot be decoded \(not an image that Pillow can read\); data",
        refused(paths),
    )
    assert numbers
    assert 22 <= int(numbers[1]) <= 30
    line = refused(paths[:10], limits=ImageLimits(max_pixels=1))
    assert "10 of 10 images that were tried can't be read, the first" in line
    assert "data.max_pixels=" in line


def test_rows_in_no_split_are_passed_over(paths: list[str]) -> None:
    Path(paths[1]).unlink()
    check_readability(table(paths, ["train", "", *["train"] * 38]), 4)


def test_skip_warns_unless_all_files_are_missing(paths: list[str], caplog: pytest.LogCaptureFixture) -> None:
    Path(paths[5]).unlink()
    check_readability(table(paths), 16, on_corrupt="skip")
    assert f"{paths[5]}; data.on_corrupt=skip leaves them out" in caplog.text
    nowhere = [f"/nowhere/{i}.png" for i in range(40)]
    assert refused(nowhere, on_corrupt="skip") == "40 of 40 image files missing, the first: /nowhere/0.png"


def test_0_looks_at_nothing() -> None:
    check_readability(table(["/nowhere/1.png", "/nowhere/2.png"]), 0)


def test_links_are_followed(paths: list[str], tmp_path: Path) -> None:
    for i, path in enumerate(paths):
        os.replace(path, f"{tmp_path}/{i}")
        os.symlink(f"{tmp_path}/{i}", path)
    assert find_missing(paths) == []
    for i in (7, 30):
        Path(f"{tmp_path}/{i}").unlink()
    assert find_missing(paths) == [paths[7], paths[30]]


def test_members_of_archives(tmp_path: Path) -> None:
    archive, folder = f"{tmp_path}/images.zip", tmp_path / "folder.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a/1.png", b"")
        file.writestr("2.png", b"")
    write_images(folder, ["3.png"])
    present = [f"{archive}/a/1.png", f"{archive}/2.png", f"{folder}/3.png"]
    missing = [f"{archive}/a/2.png", f"{archive}/1.png", f"{folder}/4.png", f"{tmp_path}/none.zip/1.png"]
    assert sorted(find_missing(present + missing)) == sorted(missing)


def test_folders_above_an_archive_may_have_its_ending(tmp_path: Path) -> None:
    archive = tmp_path / "old.zip" / "images.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a/1.png", b"png")
    assert find_missing([f"{archive}/a/1.png", f"{archive}/a/2.png"]) == [f"{archive}/a/2.png"]
    assert read_content(f"{archive}/a/1.png") == b"png"


def test_a_damaged_archive_is_named_when_it_is_read(tmp_path: Path) -> None:
    Path(tmp_path / "damaged.zip").write_bytes(b"no archive")
    paths = [f"{tmp_path}/damaged.zip/{i}.png" for i in range(20)]
    assert find_missing(paths) == []
    assert refused(paths).startswith(f"20 of 20 images that were tried can't be read, the first: {paths[0]}: ")
