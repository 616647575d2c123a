import os
import subprocess
import sys
from pathlib import Path

import pytest

from dml.runtime.files import remove_partial_files, replacing


def test_a_whole_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_disk_has_the_new_file_before_the_old_one_goes(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_text()))
    with replacing(path, on_disk=on_disk) as partial:
        partial.write_text("new")
    assert (synced, path.read_text()) == (["old"] * on_disk, "new")


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


def test_what_killed_processes_were_writing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in (".metrics.json.1-ab.partial", "checkpoints/.last.ckpt.1-cd.partial", "kept.partial", "checkpoints/a"):
        (tmp_path / name).touch()
    remove_partial_files(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a", "kept.partial"]


def test_what_living_processes_are_writing_is_left_alone_where_they_share_a_folder(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    numbers = {"first": os.getppid(), "mine": os.getpid(), "killed": ended.pid}
    for name, number in numbers.items():
        (tmp_path / f".{name}.{number}-ab12.partial").touch()
    with replacing(tmp_path / "file") as partial:
        remove_partial_files(tmp_path, is_shared=True)
        assert partial.exists()
        assert [path.name.split(".")[1] for path in sorted(tmp_path.iterdir())] == ["file", "first"]
