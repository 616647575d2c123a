"""New folders of runs: each is made by one process alone, which removes it again if nothing is written into it."""

from pathlib import Path

from dml.ops.run_folder import RunFolder

_made_folders: dict[Path, list[Path]] = {}
"""The folders that this process made, each with itself and the parents that it made, the deepest first."""


def make_folder(folder: Path) -> bool:
    """Make a folder, and return whether this process made it, and no other one."""
    made = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    _made_folders[folder.absolute()] = made
    return True


def remove_unused_folder(folder: RunFolder) -> None:
    """Remove a run's folder that `make_folder` made, and its new parents, if nothing was written into it.

    The file of the lock, and an empty log that Hydra has opened, don't count. The caller holds the lock.
    """
    made = _made_folders.get(folder.path)
    if made is None or not all(path == folder.lock.path or _is_empty_log(path) for path in folder.path.iterdir()):
        return
    for path in folder.path.iterdir():
        path.unlink()
    for path in made:
        if any(path.iterdir()):  # another run is in it
            return
        path.rmdir()


def _is_empty_log(path: Path) -> bool:
    return path.suffix == ".log" and path.is_file() and not path.stat().st_size
