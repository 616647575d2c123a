import csv
import os
from pathlib import Path

import pytest

from dml.runtime.files import clean_up, replacing, replacing_folder, write_csv

ENDED = 2**22 + 1
"""A number that no process has."""


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_whole_file_takes_the_place_of_the_old_one(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_text()))
    with replacing(path, on_disk=on_disk) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert (synced, path.read_text()) == (["old"] * on_disk, "new")  # on request the disk has it before
    assert os.listdir(tmp_path) == ["file"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_made_is_named_itself(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    with pytest.raises(FileNotFoundError) as raised, replacing(path):
        pass
    assert raised.value.filename == str(path)


def test_two_writers_of_one_file_never_share_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        assert f".{os.getpid()}-" in first.name
        first.write_text("one")
        second.write_text("two")
    assert path.read_text() == "one"  # whose block ended last


def test_what_ended_processes_were_writing_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    for name in (f".saved.{ENDED}-0123abcd.old", f".other.{ENDED}-0123abcd.old", "other"):
        (tmp_path / name).mkdir()
    for name, number in {"parents": os.getppid(), "mine": os.getpid(), "killed": ENDED}.items():
        (tmp_path / f".{name}.{number}-0123abcd.partial").touch()
    (tmp_path / ".users.partial").touch()
    with replacing(tmp_path / "file") as partial:
        clean_up(tmp_path)
        assert partial.exists()
    parents = f".parents.{os.getppid()}-0123abcd.partial"
    assert sorted(os.listdir(tmp_path)) == sorted([parents, ".users.partial", "file", "other", "saved"])


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"

    def write(text: str, error: Exception | None = None) -> None:
        with replacing_folder(path) as partial:
            (partial / text).write_text(text)
            if error is not None:
                raise error

    write("old")
    with pytest.raises(ValueError, match="half"):
        write("half", ValueError("half"))
    assert os.listdir(path) == ["old"]
    write("new")
    assert (os.listdir(path), os.listdir(tmp_path)) == (["new"], ["folder"])


def test_a_csv_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    write_csv(path, [["row", "ours"], ["α, β", 1.5]])
    assert path.read_text(encoding="utf-8") == 'row,ours\n"α, β",1.5\n'
    with pytest.raises(csv.Error):
        write_csv(path, [["row"], 3])  # type: ignore[list-item]
    assert "1.5" in path.read_text(encoding="utf-8")
    assert os.listdir(path.parent) == ["table.csv"]
