"""New folders of runs: each is made by one process alone, which removes it again if it stays unused."""

import shutil
from collections.abc import Collection
from pathlib import Path

from dml.runtime import signals

_new_folders: set[Path] = set()
"""The absolute paths of the folders that this process made, or is going to make."""


def _list_missing(folder: Path) -> list[Path]:
    return [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]


def make_folder(folder: Path) -> bool:
    """Make a folder, and return whether this process made it, and no other one."""
    missing = _list_missing(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    _new_folders.update(missing)
    return True


def note_new_folder(folder: Path) -> None:
    """Note that a folder which doesn't exist yet, such as one that the user names, will be of this process."""
    _new_folders.update(_list_missing(folder))


def remove_unused_folder(folder: Path, removable: Collection[str] = ()) -> None:
    """Remove the folder of a run that this process made, and its new parents, if nothing is in it.

    The file of the lock, which the caller holds, an empty log that Hydra has opened, and what is named removable don't
    count.
    """
    path = folder.absolute()
    if path not in _new_folders or not path.exists():
        return
    for entry in path.iterdir():
        is_empty_log = entry.suffix == ".log" and not entry.stat().st_size
        if not is_empty_log and entry.name not in (".lock", *removable):
            return
    shutil.rmtree(path)
    _new_folders.remove(path)
    if not any(path.parent.iterdir()):  # no other run is in it
        remove_unused_folder(path.parent)


def remove_unused_folders() -> None:
    """Remove each folder of this process in which no run was begun."""
    for path in sorted(_new_folders, reverse=True):
        remove_unused_folder(path)


signals.before_end.append(remove_unused_folders)
