"""New folders of runs: each is made by one process alone, which removes it again if nothing is written into it."""

import errno
import shutil
from collections.abc import Collection
from pathlib import Path

from dml.runtime import signals
from dml.runtime.errors import InputError
from dml.runtime.files import DISK_ERRORS
from dml.runtime.run_folder import RunFolder

SWEEP_FILE = "multirun.yaml"
"""The file that Hydra writes into the folder of a sweep before its first run."""

_made_folders: dict[Path, list[Path]] = {}
"""The folders that this process made, each with itself and the parents that it made, the deepest first."""


def make_folder(folder: Path) -> bool:
    """Make a folder, and return whether this process made it, and no other one."""
    made = _list_missing(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise
        refusal = f"{folder}: {error.strerror}; {DISK_ERRORS[error.errno]}"
        raise InputError(f"{refusal}: hydra.run.dir=FOLDER names it") from error
    _made_folders[folder.absolute()] = made
    return True


def remove_unused_folders() -> None:
    """Remove each folder that this process made in which no run was begun."""
    for folder in list(_made_folders):
        remove_unused_folder(RunFolder(folder), [SWEEP_FILE])


signals.before_end.append(remove_unused_folders)


def note_new_folder(folder: Path) -> None:
    """Note that a folder which doesn't exist yet, such as one that the user names, will be of this process."""
    if not folder.exists():
        _made_folders[folder.absolute()] = _list_missing(folder)


def _list_missing(folder: Path) -> list[Path]:
    """List the folder and the parents that don't exist, as absolute paths, the deepest first."""
    return [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]


def remove_unused_folder(folder: RunFolder, removable: Collection[str] = ()) -> None:
    """Remove the folder of a run or a sweep that this process made, and its new parents, if nothing is in it.

    The file of the lock, an empty log that Hydra has opened, and what is named removable don't count. The caller holds
    the lock of a run.
    """
    if folder.path.absolute() not in _made_folders or not folder.path.exists():
        return
    content = [*folder.path.iterdir()]
    if not all(path == folder.lock_file or _is_empty_log(path) or path.name in removable for path in content):
        return
    for path in content:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for path in _made_folders[folder.path.absolute()]:
        if any(path.iterdir()):  # another run is in it
            return
        path.rmdir()


def _is_empty_log(path: Path) -> bool:
    return path.suffix == ".log" and path.is_file() and not path.stat().st_size
