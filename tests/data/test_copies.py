import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_tables import make_table

from dml.data import overview
from dml.data.contents import read_stamps
from dml.data.overview import assign_content_ids, count_queries_in_gallery, warn_of_copies
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import CheckedImage, write_table
from dml.data.table import ImageTable

FILES = {
    "train/a.jpg": b"one",
    "query/0.jpg": b"one",
    "query/1.jpg": b"two",
    "query/2.jpg": b"three",
    "gallery/x.jpg": b"two",  # query 1
    "gallery/y.jpg": b"owt",  # as long as two queries, and neither
    "gallery/z.jpg": b"one",  # query 0
    "gallery/w.jpg": b"two",  # query 1 again
    "gallery/v.jpg": b"longer than any query",
}


@pytest.fixture
def table(tmp_path: Path) -> ImageTable:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    paths = [f"{tmp_path}/{name}" for name in FILES]
    return make_table([0] * len(FILES), [name.partition("/")[0] for name in FILES], paths)


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / ".dml", str(tmp_path))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that were read."""
    names: list[str] = []
    hash_content = overview.hash_content
    monkeypatch.setattr(
        overview, "hash_content", lambda path, *most: names.append(Path(path).name) or hash_content(path, *most)
    )
    return names


def groups(table: ImageTable) -> list[list[str]]:
    """The names of the files that are known to have one content."""
    names = np.array([Path(path).name for path in table.paths])
    return sorted(names[table.content == number].tolist() for number in set(table.content.tolist()) - {-1})


SAME = [["0.jpg", "z.jpg"], ["1.jpg", "x.jpg", "w.jpg"], ["y.jpg"]]


def test_queries_are_found_by_the_content_of_their_files(table: ImageTable, folder: CacheFolder) -> None:
    numbered = assign_content_ids(table, folder)
    assert [group for group in groups(numbered) if group != ["2.jpg"]] == SAME
    assert count_queries_in_gallery(numbered) == (2, 3)
    assert count_queries_in_gallery(table) == (0, 3)
    assert not folder.path.exists()


def test_files_of_another_size_are_not_read(table: ImageTable, folder: CacheFolder, read: list[str]) -> None:
    assign_content_ids(table, folder)
    assert sorted(read) == ["0.jpg", "1.jpg", "2.jpg", "w.jpg", "x.jpg", "y.jpg", "z.jpg"]


def test_queries_are_found_in_another_archive(tmp_path: Path) -> None:
    splits = {"query": [b"one", b"two"], "gallery": [b"two", b"owt", b"longer than any query"]}
    paths = []
    for split, contents in splits.items():
        archive = tmp_path / f"{split}.zip"
        files = {f"{number}.jpg": content for number, content in enumerate(contents)}
        with zipfile.ZipFile(archive, "w") as packed:
            for name, content in files.items():
                packed.writestr(name, content)
        paths += [f"{archive}/{name}" for name in files]
    table = make_table([0] * 5, ["query"] * 2 + ["gallery"] * 3, paths)
    found = assign_content_ids(table, None)
    assert count_queries_in_gallery(found) == (1, 2)
    assert found.content[1] == found.content[2] != found.content[3]


def test_what_prepare_found_is_not_read_again(table: ImageTable, folder: CacheFolder, read: list[str]) -> None:
    paths = table.paths.tolist()
    digests = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths]
    found = zip(paths, read_stamps(paths).tolist(), digests, strict=True)
    folder.path.mkdir()
    write_table(folder, table, {path: CheckedImage(*stamp, 1, 1, digest, "") for path, stamp, digest in found})
    assert count_queries_in_gallery(assign_content_ids(table, folder)) == (2, 3)
    assert read == []
    changed = Path(table.paths[4])
    changed.write_bytes(b"own")
    os.utime(changed, ns=(1, 1))
    assert count_queries_in_gallery(assign_content_ids(table, folder)) == (2, 3)  # w.jpg is query 1, too
    assert read == ["x.jpg"]


def test_a_folder_that_may_only_be_read_is_no_obstacle(table: ImageTable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert count_queries_in_gallery(assign_content_ids(table, CacheFolder(tmp_path / "file", str(tmp_path)))) == (2, 3)


def test_a_missing_file_has_no_copy(table: ImageTable, folder: CacheFolder) -> None:
    for row in (1, 6):
        Path(table.paths[row]).unlink()
    assert count_queries_in_gallery(assign_content_ids(table, folder)) == (1, 3)


def test_copies_count_in_the_list_that_they_are_in(table: ImageTable) -> None:
    """Query 1's copies are in the gallery of another level."""
    benchmark = np.array([-1, 0, 0, 0, 1, 0, 0, 1, 0])
    listed: Any = {name: getattr(table, name) for name in ("paths", "split", "content")}
    two = ImageTable(labels=np.zeros((len(table), 2), dtype=np.int64), levels=("a", "b"), benchmark=benchmark, **listed)
    assert count_queries_in_gallery(assign_content_ids(two, None)) == (1, 3)


def test_copies_that_nobody_knows_of_are_told(table: ImageTable, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_copies(table)
    assert "2 of 3 queries are in their gallery as files of the same content, and find themselves;" in caplog.text
    caplog.clear()
    warn_of_copies(table, queries=2)
    assert "1 of 2 queries that were compared, of 3, are in their gallery" in caplog.text


def test_a_gallery_without_copies_and_none_at_all_are_not_told(
    table: ImageTable, caplog: pytest.LogCaptureFixture
) -> None:
    is_copy = np.isin([Path(path).name for path in table.paths], ["x.jpg", "z.jpg", "w.jpg"])
    warn_of_copies(table.take(np.flatnonzero(~is_copy)))
    warn_of_copies(table.subset("train"))
    assert not caplog.text
