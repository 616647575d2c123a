import hashlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dml.data.contents import MISSING, read_stamps
from dml.data.prepared import verification
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, check_images, list_faults, write_table
from dml.data.table import ImageTable

SPLITS = ["train", "train", "val", "test", "query", "gallery", ""]


@pytest.fixture
def table(tmp_path: Path) -> ImageTable:
    """Seven images, that of row i of 10 + i x 20 pixels, two classes a level."""
    (tmp_path / "images").mkdir()
    paths = [tmp_path / "images" / f"{i}.png" for i in range(len(SPLITS))]
    for i, path in enumerate(paths):
        Image.new("RGB", (20, 10 + i), (i, 0, 0)).save(path)
    return ImageTable(
        paths=np.array([str(path) for path in paths]),
        labels=np.array([[0, 0], [1, 1], [2, 0], [3, 1], [4, 0], [4, 0], [0, 0]]),
        split=np.array(SPLITS),
        levels=("class", "group"),
        names=(("a", "b", "c", "d", "e"), ("first", "second")),
    )


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    (tmp_path / ".dml").mkdir()
    return CacheFolder(tmp_path / ".dml", str(tmp_path))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that were read, two at a time."""
    names: list[str] = []
    check_image = verification._check_image
    monkeypatch.setattr(verification, "CHUNK", 2)
    monkeypatch.setattr(verification, "WRITE_EVERY", 0)

    def record(path: str, *arguments: Any) -> CheckedImage:
        names.append(Path(path).stem)
        return check_image(path, *arguments)

    monkeypatch.setattr(verification, "_check_image", record)
    return names


def check(table: ImageTable, folder: CacheFolder, advance: Callable[[int], None] = lambda _: None) -> Any:
    return check_images(table, folder, processes=1, advance=advance)


# the results of the checks


def test_what_is_found(table: ImageTable, folder: CacheFolder) -> None:
    progress: list[int] = []
    results = check(table, folder, progress.append)
    assert list(results) == table.paths.tolist()
    assert sum(progress) == 7
    for i, path in enumerate(table.paths):
        sha256 = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        assert results[path] == CheckedImage(*read_stamps([path])[0].tolist(), 10 + i, 20, sha256, "")


def test_images_that_cannot_be_read(table: ImageTable, folder: CacheFolder) -> None:
    Path(table.paths[1]).unlink()
    Path(table.paths[2]).write_text("damaged")
    Path(table.paths[3]).write_bytes(Path(table.paths[3]).read_bytes()[:50])
    results = [*check(table, folder).values()]
    assert results[1] == CheckedImage(*MISSING, 0, 0, "", "no such file")
    assert results[2].error == "not an image that Pillow can read"
    assert results[3].error
    assert all("\n" not in image.error and len(image.error) <= 120 for image in results)
    assert [bool(image.height) for image in results] == [True, False, False, False, True, True, True]


def test_an_image_of_several_rows_is_read_once(table: ImageTable, folder: CacheFolder, read: list[str]) -> None:
    results = check(table.take(np.array([1, 0, 1, 1])), folder)
    assert read == ["1", "0"]
    assert list(results) == [table.paths[1], table.paths[0]]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_processes_find_the_same(
    table: ImageTable, folder: CacheFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "CHUNK", 2)
    (tmp_path / "other").mkdir()
    other = CacheFolder(tmp_path / "other", folder.root)
    results = check_images(table, folder, processes=2, advance=lambda _: None)
    assert results == check(table, other)
    assert list(results) == table.paths.tolist()


# what was read isn't read again


def test_unchanged_images_are_read_once(table: ImageTable, folder: CacheFolder, read: list[str]) -> None:
    first = check(table, folder)
    for _ in range(2):  # from the unfinished results, then from the table
        read.clear()
        assert check(table, folder) == first
        assert read == []
        write_table(folder, table, first)
    assert [path.name for path in folder.path.iterdir()] == ["table.parquet"]


def test_changed_and_broken_images_are_read_again(table: ImageTable, folder: CacheFolder, read: list[str]) -> None:
    Path(table.paths[5]).write_text("damaged")
    write_table(folder, table, check(table, folder))
    Image.new("RGB", (3, 4)).save(table.paths[1])
    os.utime(table.paths[2], ns=(1, 1))
    read.clear()
    results = check(table, folder)
    assert read == ["1", "2", "5"]
    assert results[table.paths[1]].height == 4


def test_what_was_found_moves_with_the_data_set(
    table: ImageTable, folder: CacheFolder, read: list[str], tmp_path: Path
) -> None:
    write_table(folder, table, check(table, folder))
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    there = ImageTable(
        np.array([path.replace(str(tmp_path), str(moved)) for path in table.paths]),
        table.labels,
        table.split,
        table.levels,
    )
    read.clear()
    check(there, CacheFolder(moved / ".dml", str(moved)))
    assert read == []


def test_a_verification_that_was_killed_goes_on(table: ImageTable, folder: CacheFolder, read: list[str]) -> None:
    def killed() -> None:
        check(table, folder, lambda _: os.kill(os.getpid(), signal.SIGKILL) if len(read) == 4 else None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, from Python 3.12 on
        child = multiprocessing.get_context("fork").Process(target=killed)
        child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    progress: list[int] = []
    results = check(table, folder, progress.append)
    assert read == ["4", "5", "6"]
    assert progress == [4, 2, 1]
    assert [image.height for image in results.values()] == [10 + i for i in range(7)]


# the table


def test_the_table(table: ImageTable, folder: CacheFolder) -> None:
    results = check(table, folder)
    path = write_table(folder, table, results)
    rows = pq.read_table(path).to_pylist()
    assert rows[3] == {
        "path": "images/3.png",
        "split": "test",
        "benchmark": -1,
        "class": 3,
        "class_name": "d",
        "group": 1,
        "group_name": "second",
        **{name: getattr(results[table.paths[3]], name) for name in CheckedImage.__slots__},
    }
    assert [row["split"] for row in rows] == SPLITS


def test_unknown_labels_have_no_name(table: ImageTable, folder: CacheFolder) -> None:
    labels = table.labels.copy()
    labels[2, 1] = -1
    judged = ImageTable(
        table.paths, labels, table.split, table.levels, table.names, benchmark=np.array([-1, -1, 0, -1, -1, -1, -1])
    )
    rows = pq.read_table(write_table(folder, judged, check(judged, folder))).to_pylist()
    assert (rows[2]["group"], rows[2]["group_name"]) == (-1, "")
    assert rows[2]["benchmark"] == 0


# faults


def faults(table: ImageTable, folder: CacheFolder, **settings: Any) -> dict[str, list[str]]:
    return list_faults(table, check(table, folder), **settings)


def test_no_faults(table: ImageTable, folder: CacheFolder) -> None:
    counts = {"train": {"images": 2, "class": 2}, "gallery": {"images": 1, "group": 1}}
    assert faults(table, folder, counts=counts) == {}


def test_faults_of_the_lists(table: ImageTable, folder: CacheFolder) -> None:
    labels = table.labels.copy()
    labels[3, 0] = 1
    shared = ImageTable(table.paths, labels, table.split, table.levels, table.names)
    lines = faults(shared, folder, counts={"train": {"images": 3}})["in the lists"]
    assert lines[0] == "2 images in the train split, published 3"
    assert any("1 class is in training and in test" in line for line in lines)
    assert "in the lists" in faults(shared, folder, disjoint=False)
    assert not any("both" in line for line in faults(shared, folder, disjoint=False)["in the lists"])


def test_faults_of_files(table: ImageTable, folder: CacheFolder) -> None:
    Path(table.paths[1]).unlink()
    Path(table.paths[6]).write_text("damaged")
    lines_by_kind = faults(table, folder)
    assert lines_by_kind["missing file"] == [table.paths[1]]
    assert lines_by_kind["image that can't be decoded"] == [f"{table.paths[6]} (not an image that Pillow can read)"]
    assert set(lines_by_kind) == {"missing file", "image that can't be decoded"}


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        (0, 3, True),  # train and test
        (2, 4, True),  # val and query
        (1, 5, True),  # train and gallery
        (0, 2, False),  # train and val are both for training
        (4, 5, False),
        (0, 6, False),  # of no split
    ],
)
def test_the_same_content_in_training_and_test(
    table: ImageTable, folder: CacheFolder, first: int, second: int, fault: bool
) -> None:
    Path(table.paths[second]).write_bytes(Path(table.paths[first]).read_bytes())
    expected = {"image in training and in test": [f"{table.paths[second]} is {table.paths[first]}"]} if fault else {}
    assert faults(table, folder) == expected
