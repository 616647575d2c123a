"""Disks that are full or read-only, and loader's processes that are killed: one line, and nothing is lost."""

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.utils.data
from conftest import ONE_HEAD, Here, Refused
from runs import assert_same_run, last, train

from dml.commands.error_lines import explain
from dml.data.dataset import ImageDataset
from dml.runtime.files import replacing, write_csv, write_text
from dml.runtime.run_folder import RunFolder, RunState

QUICK = [*ONE_HEAD, "evaluation.heads=false", "evaluation.metrics=[recall]", "model.heads=[H]", "scheduler=constant"]


@pytest.fixture(scope="module")
def whole(small_emoji: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    return train(tmp_path_factory.mktemp("whole") / "run", f"dataset.root={small_emoji}", *QUICK)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=1g")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(folder: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount disks")


def partial_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.partial"))


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(
    refused: Refused, here: Here, small_emoji: Path, whole: Path, disk: Path
) -> None:
    run = disk / "run"
    size = (whole / "checkpoints" / "last.ckpt").stat().st_size
    mount(disk, f"remount,size={int(2.5 * size)}")  # best.ckpt, last.ckpt and half of the next
    line = refused(f"dataset.root={small_emoji}", *QUICK, f"hydra.run.dir={run}")
    assert line.startswith(f"error: {run / 'checkpoints'}/")
    room = r"\.ckpt: No space left on device; make room there; "
    assert re.search(f"{room}what was saved is kept, and resume=", line)
    assert partial_files(run) == []
    assert last(run)["global_step"] >= 2
    assert RunFolder(run).state == RunState.INTERRUPTED
    mount(disk, "remount,size=1g")
    here("train", f"resume={run}")
    assert_same_run(whole, run)


def test_a_read_only_disk_is_one_line(refused: Refused, small_emoji: Path, whole: Path, disk: Path) -> None:
    arguments = [f"dataset.root={small_emoji}", *QUICK]
    shutil.copytree(whole, disk / "run")
    mount(disk, "remount,ro")
    new = [
        [f"resume={disk / 'run'}"],
        [*arguments, f"hydra.run.dir={disk / 'new'}"],
        [*arguments, f"hydra.run.dir='${{new_folder:{disk}/now}}'"],
        ["--multirun", *arguments, f"hydra.sweep.dir={disk / 'sweep'}"],
    ]
    for given in new:
        line = refused(*given)
        assert line.startswith(f"error: {disk}/")
        assert "Read-only file system; choose a folder that can be written to" in line


def test_a_file_in_the_place_of_a_folder_is_one_line(refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    arguments = [f"dataset.root={small_emoji}", *QUICK]
    assert f"error: {file}: File exists; choose a path" in refused(*arguments, f"hydra.run.dir={file}")
    line = refused(*arguments, f"hydra.run.dir={file / 'run'}")
    assert line.startswith(f"error: {file / 'run'}: Not a directory; choose a path below a folder")


@pytest.mark.parametrize("name", ["docs", ".", "/"])
def test_a_folder_in_the_place_of_a_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    for write in (lambda path: write_text(path, "text"), lambda path: write_csv(path, [["a"], [1]])):
        with pytest.raises(IsADirectoryError) as raised:
            write(Path(name))
        assert explain(raised.value) == f"{name}: Is a directory; give the path of a file, not of a folder"
    assert [path.name for path in tmp_path.rglob("*")] == ["docs"]


def test_a_killed_loader_is_one_line_and_the_state_is_kept(
    refused: Refused, here: Here, small_emoji: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    original = ImageDataset.__getitem__

    def killed_at_the_validation(self: ImageDataset, draw: object) -> object:
        if torch.utils.data.get_worker_info() is not None and isinstance(draw, int):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, draw)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageDataset, "__getitem__", killed_at_the_validation)
    line = refused(f"dataset.root={small_emoji}", *QUICK, "data.num_workers=1", f"hydra.run.dir={run}")
    assert "which loads images, " in line
    assert "a smaller data.num_workers takes less memory; what was saved is kept" in line
    monkeypatch.undo()
    assert last(run)["global_step"] == 2
    assert partial_files(run) == []
    here("train", f"resume={run}", "data.num_workers=0")
    assert_same_run(whole, run)


def test_a_write_that_finds_no_room_keeps_the_last_checkpoint(
    refused: Refused, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, on machines that allow no disk for a test."""
    saved, calls = torch.save, iter(range(100))

    def save(*arguments: object, **keywords: object) -> None:
        if next(calls) >= 2:
            raise OSError(errno.ENOSPC, "full")
        saved(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "save", save)
    line = refused(f"dataset.root={small_emoji}", *QUICK, "model=small_cnn", f"hydra.run.dir={tmp_path}")
    assert f"error: {tmp_path / 'checkpoints'}/" in line
    assert "No space left on device; make room there; what was saved is kept, and resume=" in line
    assert last(tmp_path)["global_step"] == 2
    assert partial_files(tmp_path) == []


def test_writing_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(error: Exception) -> None:
        with replacing(path):
            raise error

    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "full")):
        with pytest.raises(OSError, match="file") as told:
            write(error)
        assert (told.value.filename, told.value.errno) == (str(path), error.errno)
    with pytest.raises(OSError, match="other") as told:
        write(OSError(errno.EIO, "broken", "other"))
    assert told.value.filename == "other"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_other_failures_stay_bugs() -> None:
    errors = [OSError("anything"), OSError(errno.EINVAL, "invalid", "file"), RuntimeError("anything")]
    errors += [PermissionError(errno.EPERM, "not permitted"), FileNotFoundError(errno.ENOENT, "none", "file")]
    assert [*map(explain, errors)] == [None] * 5
