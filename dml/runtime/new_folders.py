"""New folders of runs and sweeps: each is made by one process alone, which removes it again if it stays unused."""

import shutil
from collections.abc import Collection
from pathlib import Path

from dml.runtime import signals
from dml.runtime.errors import InputError
from dml.runtime.files import DISK_ERRORS
from dml.runtime.run_folder import RunFolder

SWEEP_FILE = "multirun.yaml"
"""The file that Hydra writes into the folder of a sweep before its first run."""

_new_folders: list[Path] = []
"""The absolute paths of the folders that this process made, or is going to make, each behind its parents."""


def make_folder(folder: Path) -> bool:
    """Make a folder, and return whether this process made it, and no other one."""
    missing = _list_missing(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        remedy = DISK_ERRORS.get(error.errno or 0, "choose another folder")
        raise InputError(f"{folder}: {error.strerror}; {remedy}: hydra.run.dir=FOLDER names it") from error
    _new_folders.extend(path for path in missing if path not in _new_folders)
    return True


def note_new_folder(folder: Path) -> None:
    """Note that a folder which doesn't exist yet, such as one that the user names, will be of this process."""
    _new_folders.extend(path for path in _list_missing(folder) if path not in _new_folders)


def _list_missing(folder: Path) -> list[Path]:
    """List the parents that don't exist, and the folder if it doesn't either, as absolute paths."""
    paths = [*reversed(folder.absolute().parents), folder.absolute()]
    return [path for path in paths if not path.exists()]


def remove_unused_folder(folder: RunFolder, removable: Collection[str] = ()) -> None:
    """Remove the folder of a run or a sweep that this process made, and its new parents, if nothing is in it.

    The file of the lock, an empty log that Hydra has opened, and what is named removable don't count. The caller holds
    the lock of a run.
    """
    path = folder.path.absolute()
    if path not in _new_folders or not path.exists():
        return
    for entry in [*path.iterdir()]:
        is_empty_log = entry.suffix == ".log" and entry.is_file() and not entry.stat().st_size
        if not is_empty_log and entry.name not in (folder.lock_file.name, *removable):
            return
    shutil.rmtree(path)
    _new_folders.remove(path)
    for parent in path.parents:
        if parent not in _new_folders or any(parent.iterdir()):  # another run is in it
            return
        parent.rmdir()
        _new_folders.remove(parent)


def remove_unused_folders() -> None:
    """Remove each folder of this process in which no run was begun, as that of a sweep before its first run."""
    for path in [*_new_folders]:
        remove_unused_folder(RunFolder(path), [SWEEP_FILE])


signals.before_end.append(remove_unused_folders)
