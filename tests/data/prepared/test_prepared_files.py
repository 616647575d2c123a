import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml.data.prepared import prepared_files
from dml.data.prepared.prepared_files import (
    UnfitFileError,
    checksummed_line,
    hold_preparation_lock,
    open_file,
    read_lines,
    read_parquet,
    refuse_links,
    replacing_file,
    write_parquet,
)
from dml.runtime.errors import InputError

TABLE = pa.table(
    {"path": ["a.jpg", "dml.crc32=00000000", "b.jpg"], "bytes": [1, 2, 3]}, metadata={"dml": '{"format": 3}'}
)
LINES: list[Any] = ["plan", {'odd "name"\n\u00e9\udcff.png': {"bytes": 3, "error": ""}}, [1, [2, 3]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set" / ".dml" / "sop").mkdir(parents=True)
    return tmp_path / "set" / ".dml" / "sop"


def test_a_table_comes_back(folder: Path) -> None:
    path = folder / "table.parquet"
    write_parquet(path, TABLE)
    assert read_parquet(path).equals(TABLE)
    assert read_parquet(path).schema.metadata[b"dml"] == b'{"format": 3}'
    assert read_parquet(path, ["bytes"]).column_names == ["bytes"]
    assert pq.read_table(path).equals(TABLE), "any other program reads it"
    content = path.read_bytes()
    write_parquet(path, TABLE)
    assert path.read_bytes() == content
    with pytest.raises(UnfitFileError, match=r"table\.parquet: is damaged"):
        read_parquet(path, ["label"])


def test_every_flipped_bit_of_a_table_is_noticed(folder: Path) -> None:
    path = folder / "table.parquet"
    write_parquet(path, TABLE)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(UnfitFileError):
            read_parquet(path)
    for length in (0, 1, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UnfitFileError):
            read_parquet(path)


def test_a_flipped_bit_never_changes_a_line(folder: Path) -> None:
    path = folder / "verified.jsonl"
    whole = "".join(map(checksummed_line, LINES)).encode()
    path.write_bytes(whole)
    warnings: list[str] = []
    assert read_lines(path, warnings.append, "read again") == LINES
    rng = random.Random(0)
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        warnings.clear()
        values = read_lines(path, warnings.append, "read again")
        assert all(value in LINES for value in values)
        assert warnings or values == LINES  # a flipped newline, say, costs two lines; another white space none
    path.write_bytes(whole[:-9])
    warnings.clear()
    assert read_lines(path, warnings.append, "read again") == LINES[:2]
    assert warnings == [f"{path}: 1 lines were cut short or damaged; their images are read again"]


READERS: list[Callable[[Path], Any]] = [open_file, read_parquet]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_what_is_no_file(folder: Path, read: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "file"
    with pytest.raises(FileNotFoundError):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(Path("/dev/null/file"))
    path.mkdir()
    with pytest.raises(InputError, match="file: stands where a prepared file belongs and isn't a file; delete it"):
        read(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(InputError, match="file: stands where a prepared file belongs"):
        read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="file: is a link to /dev/zero"):
        read(path)
    path.unlink()

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    path.touch()
    monkeypatch.setattr(prepared_files.os, "open", refuse)
    with pytest.raises(UnfitFileError, match=r"file: can't be read \(Permission denied\)"):
        read(path)


@pytest.mark.parametrize(
    "link", [".dml", ".dml/sop", ".dml/cache", ".dml/sop/table.parquet", ".dml/sop/other", ".dml/sop.lock"]
)
@pytest.mark.parametrize("target", ["elsewhere", "missing"])
def test_links_are_refused(tmp_path: Path, link: str, target: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "set" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / target)
    with pytest.raises(InputError, match=rf"{link}: is a link to {tmp_path}/{target}, and .*: delete it") as raised:
        refuse_links(tmp_path / "set" / ".dml" / "sop")
    assert "\n" not in str(raised.value)


def test_links_to_the_data_set_and_beside_it_are_the_users_own(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "set")
    refuse_links(tmp_path / "link" / ".dml" / "sop")
    (tmp_path / "set" / "images").symlink_to("/")
    refuse_links(folder)
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "other").symlink_to("/")
    refuse_links(tmp_path / "fast" / "sop")


def test_a_folder_is_never_replaced(folder: Path) -> None:
    (folder / "table.parquet").mkdir()
    with pytest.raises(InputError, match=r"table\.parquet: stands where a prepared file belongs"):
        replacing_file(folder / "table.parquet").__enter__()
    assert [path.name for path in folder.iterdir()] == ["table.parquet"]


def test_the_lock_overwrites_no_other_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", folder.with_name("sop.lock"))
    with hold_preparation_lock(folder):
        pass
    assert (tmp_path / "mine").read_text() == "mine"
    assert folder.with_name("sop.lock").read_text() == ""
