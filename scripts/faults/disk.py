"""Rows about the machine: a full disk, a folder that can't be written to, a worker that is killed."""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from faults.commands import RunningCommand, find_processes, run
from faults.files import find_cache_difference
from faults.fixtures import Fixtures, cache_folder, long_train_arguments, prepare_arguments, train_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_done, check_no_partial, check_told, check_unchanged_or_told, find_run_difference

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000


def mount_disk(place: Path, size: str) -> None:
    """Mount a disk at a folder, for this process and those that it starts; the disk goes when they end.

    Raises:
        FailedError: if the machine doesn't allow it.
    """
    user, libc = os.getuid(), ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS | (0 if user == 0 else NEW_USER)):
        raise FailedError(f"this machine allows no disk for a test ({os.strerror(ctypes.get_errno())})")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    place.mkdir(exist_ok=True)
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        raise FailedError(f"this machine allows no disk for a test ({done.stderr.strip()})")


def _fill_disk(folder: Path, free: int) -> Path:
    """Fill a disk until some bytes are free, and return the file that fills it."""
    state = os.statvfs(folder)
    size = state.f_bavail * state.f_frsize - free
    path = folder / "filler"
    with path.open("wb") as file:
        for _ in range(max(0, size) // 4096):
            file.write(bytes(4096))
    return path


def _fill_disk_in_training(attempt: Try) -> str:
    """Train with room on the disk for a part of what the run writes, then with more room."""
    disk = attempt.folder / "disk"
    mount_disk(disk, "16m")
    filler = _fill_disk(disk, int(attempt.rng.integers(30_000, 2_300_000)))
    fixtures, folder = Fixtures(attempt.fixtures), disk / "run"
    arguments = train_arguments(fixtures.images, folder)
    ended = run("train.py", *arguments, folder=attempt.folder)
    how = check_unchanged_or_told(ended, lambda: find_run_difference(fixtures.run, folder), disk)
    if how == "unchanged":
        return "there was room"
    filler.unlink()
    has_begun = (folder / ".hydra" / "config.yaml").exists() or (folder / "checkpoints" / "last.ckpt").exists()
    again = run("train.py", *([f"resume={folder}"] if has_begun else arguments), folder=attempt.folder)
    check_done(again, disk)
    if difference := find_run_difference(fixtures.run, folder):
        raise FailedError(f"with room it went on, and ended {difference}", again)
    return "told, and went on"


def _fill_disk_in_prepare(attempt: Try) -> str:
    """Prepare a data set with room on the disk for a part of what prepare writes, then with more room."""
    disk = attempt.folder / "disk"
    mount_disk(disk, "16m")
    fixtures, images = Fixtures(attempt.fixtures), disk / "images"
    shutil.copytree(fixtures.images, images)
    filler = _fill_disk(disk, int(attempt.rng.integers(4_000, 400_000)))
    arguments = prepare_arguments(images)
    ended = run("scripts/prepare.py", *arguments, folder=attempt.folder)
    expected = cache_folder(fixtures.prepared)
    how = check_unchanged_or_told(ended, lambda: find_cache_difference(expected, cache_folder(images)), disk)
    filler.unlink()
    again = run("scripts/prepare.py", *arguments, folder=attempt.folder)
    check_done(again, disk)
    if difference := find_cache_difference(expected, cache_folder(images)):
        raise FailedError(f"with room it made {difference}", again)
    return "there was room" if how == "unchanged" else "told, and went on"


def _fill_disk_in_compare(attempt: Try) -> str:
    """Write the table of a finished run to a full disk."""
    disk = attempt.folder / "disk"
    mount_disk(disk, "16m")
    fixtures = Fixtures(attempt.fixtures)
    _fill_disk(disk, 4096)
    ended = run("scripts/compare.py", str(fixtures.run), "--csv", str(disk / "out"), folder=attempt.folder)
    return check_unchanged_or_told(ended, lambda: "", disk)


def _write_to_read_only_disk(script: str) -> Callable[[Try], str]:
    def write_to_read_only_disk(attempt: Try) -> str:
        disk = attempt.folder / "disk"
        mount_disk(disk, "16m")
        fixtures = Fixtures(attempt.fixtures)
        copied = {"train.py": "interrupted", "scripts/prepare.py": "images"}[script]
        shutil.copytree(attempt.fixtures / copied, disk / copied)
        _mount("-o", "remount,ro", str(disk))
        arguments = {
            "train.py": [f"resume={disk / copied}"]
            if attempt.number % 2
            else train_arguments(fixtures.images, disk / "run"),
            "scripts/prepare.py": prepare_arguments(disk / copied),
        }[script]
        return check_told(run(script, *arguments, folder=attempt.folder))

    return write_to_read_only_disk


def _kill_worker(attempt: Try) -> str:
    """Kill a process that loads images, then resume the run."""
    fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
    arguments = long_train_arguments(fixtures.images, folder, "data.num_workers=1")
    running = RunningCommand("train.py", arguments, attempt.folder)
    while not (folder / "checkpoints" / "last.ckpt").exists() and not running.has_ended():
        time.sleep(0.01)
    time.sleep(attempt.rng.uniform(0, 0.2))
    for process in find_processes(running.process):
        if process != running.process:
            os.kill(process, signal.SIGKILL)
    ended = running.wait()
    if ended.code == 0:
        return check_unchanged_or_told(ended, lambda: find_run_difference(fixtures.long_run, folder), folder)
    check_told(ended, (1, 2), folder)
    again = run("train.py", f"resume={folder}", folder=attempt.folder)
    check_done(again, folder)
    if difference := find_run_difference(fixtures.long_run, folder):
        raise FailedError(f"went on, and ended {difference}", again)
    return "told, and went on"


def _kill_preparer(attempt: Try) -> str:
    """Kill a process of prepare, then prepare the data set again."""
    fixtures, images = Fixtures(attempt.fixtures), attempt.folder / "images"
    shutil.copytree(fixtures.images, images)
    arguments = prepare_arguments(images, "processes=2")
    running = RunningCommand("scripts/prepare.py", arguments, attempt.folder)
    while not running.has_ended():
        workers = [process for process in find_processes(running.process) if process != running.process]
        if workers:
            time.sleep(attempt.rng.uniform(0, 0.05))
            os.kill(workers[int(attempt.rng.integers(len(workers)))], signal.SIGKILL)
            break
    expected = cache_folder(fixtures.prepared)
    how = check_unchanged_or_told(
        running.wait(), lambda: find_cache_difference(expected, cache_folder(images)), images, codes=(1, 2)
    )
    again = run("scripts/prepare.py", *arguments, folder=attempt.folder)
    check_done(again, images)
    check_no_partial(images)
    if difference := find_cache_difference(expected, cache_folder(images)):
        raise FailedError(f"prepared again, it made {difference}", again)
    return "finished before" if how == "unchanged" else "told, and went on"


MACHINE: list[Callable[[Try], str]] = [
    _fill_disk_in_training,
    _fill_disk_in_training,
    _fill_disk_in_prepare,
    _fill_disk_in_compare,
    _write_to_read_only_disk("train.py"),
    _write_to_read_only_disk("scripts/prepare.py"),
    _kill_worker,
    _kill_preparer,
]


def _disturb_machine(attempt: Try) -> str:
    kind = MACHINE[attempt.number % len(MACHINE)]
    try:
        return kind(attempt)
    except FailedError as error:
        name = kind.__name__.strip("_").replace("_", " ")
        raise FailedError(f"{name}: {error.why}", error.ended) from error


FAULTS = [
    Fault(
        "machine",
        "a disk that is full after any number of bytes, a read-only folder, a worker that is killed",
        36,
        "the same results, or one line and exit code 2 (1 for a killed worker) with no .partial file left; after "
        "there is room again, the run or the preparation ends as without the fault",
        "The error line says what to do; the last complete checkpoint stays.",
        _disturb_machine,
    ),
]
