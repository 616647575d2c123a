"""The resolvers that configurations call, such as ``${new_folder:outputs/emoji}``."""

from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder, configuration_id, folders_below
from dml.run.config_folders import list_overrides
from dml.run.stored_configuration import plain_config


def unless(value: Any, default: Any) -> Any:
    """Resolve ``${unless:VALUE,DEFAULT}``: null if there is a value, else the default."""
    return default if value is None else None


def new_folder(path: str, *, _root_: DictConfig) -> str:
    """Resolve ``${new_folder:PATH}``, Hydra's folder of a run: make PATH, or PATH_2, PATH_3 and so on if it exists.

    Raises:
        ValueError: while Hydra composes: OmegaConf resolves a value before it is replaced by that of another file.
    """
    if OmegaConf.select(_root_, "hydra.runtime.cwd") is None:
        raise ValueError(f"new_folder {path}: the configuration isn't complete")
    folders = OmegaConf.get_cache(_root_)["new_folder"]  # Hydra resolves the folder of one run several times
    if path not in folders:
        name, number = path, 1
        while not _make_folder(Path(name)):
            number += 1
            name = f"{path}_{number}"
        folders[path] = name
    return str(folders[path])


def sweep_subfolder(number: int, *, _root_: DictConfig) -> str:
    """Resolve ``${sweep_subfolder:NUMBER}``: the name of a run's folder in the folder of its sweep.

    If the sweep has a run of this configuration already, its folder is taken, whatever its number was. A new run gets
    its number, with a hash of the configuration behind it if that folder is taken. Its folder is made here, with the
    configuration in it, so that two sweeps never share one.
    """
    sweep = Path(str(_root_.hydra.sweep.dir))
    config = {name: value for name, value in plain_config(_root_).items() if name != "hydra"}
    identity = configuration_id(config)
    for folder in folders_below(sweep):
        if _read_identity(folder.path, folder.config_file.stat().st_mtime_ns) == identity:
            return str(folder.path.relative_to(sweep))
    hydra = OmegaConf.masked_copy(_root_, "hydra")
    overrides = list_overrides(_root_.hydra)
    # before the folder is made: a sweep that is stopped in between leaves one that no run is found in
    texts = [OmegaConf.to_yaml(content) for content in (config, hydra, overrides)]
    name = str(number)
    if not _make_folder(sweep / name):
        name = f"{number}-{identity[:8]}"
        if not _make_folder(sweep / name):
            raise InputError(f"{sweep / name}: holds no configuration; delete it")
    RunFolder(sweep / name).write_configuration(*texts)
    return name


def _make_folder(folder: Path) -> bool:
    """Make a folder, and return whether this process made it, and no other one."""
    made = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    _made_folders[folder.absolute()] = made
    return True


_made_folders: dict[Path, list[Path]] = {}
"""The folders that this process made, each with itself and the parents that it made, the deepest first."""


def is_unused(folder: RunFolder) -> bool:
    """Return whether `new_folder` made a run's folder, and nothing was written into it but a lock and empty logs."""
    return folder.path in _made_folders and all(
        path == folder.lock.path or _is_empty_log(path) for path in folder.path.iterdir()
    )


def remove_unused_folder(folder: RunFolder) -> None:
    """Remove a run's folder that `new_folder` made, and its new parents, if nothing was written into it.

    The file of the lock, and an empty log that Hydra has opened, don't count. The caller holds the lock.
    """
    if not is_unused(folder):
        return
    for path in folder.path.iterdir():
        path.unlink()
    for path in _made_folders[folder.path]:
        if any(path.iterdir()):  # another run is in it
            return
        path.rmdir()


def _is_empty_log(path: Path) -> bool:
    return path.suffix == ".log" and path.is_file() and not path.stat().st_size


@cache
def _read_identity(folder: Path, modified: int) -> str:  # noqa: ARG001 (a file that has changed is read again)
    return configuration_id(RunFolder(folder).config)


def resize_for(size: int) -> int:
    """Return the side that images are resized to before a crop of ``size`` pixels: 256 for 224, and in proportion."""
    return round(size * 256 / 224)


OmegaConf.register_new_resolver("resize_for", resize_for, replace=True)
OmegaConf.register_new_resolver("unless", unless, replace=True)
OmegaConf.register_new_resolver("new_folder", new_folder, replace=True)
OmegaConf.register_new_resolver("sweep_subfolder", sweep_subfolder, replace=True)
