"""The resolvers that configurations call, such as ``${new_folder:outputs/emoji}``."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dml.run.config_folders import list_overrides
from dml.run.stored import plain_config
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.run_folder import RunFolder, configuration_id, folders_below, make_folder


def unless(value: Any, default: Any) -> Any:
    """Resolve ``${unless:VALUE,DEFAULT}``: null if there is a value, else the default."""
    return default if value is None else None


def learning_rate(default: float, *, _root_: DictConfig) -> float:
    """Resolve ``${learning_rate:DEFAULT}``: the rate that the model's file states for its weights.

    It is DEFAULT if the file states none, and with ``training.frozen``: heads alone would hardly learn at that rate.
    """
    stated = OmegaConf.select(_root_, "model.pretraining.lr")
    return default if stated is None or OmegaConf.select(_root_, "training.frozen") else float(stated)


def new_folder(path: str, *, _root_: DictConfig) -> str:
    """Resolve ``${new_folder:PATH}``, Hydra's folder of a run: make PATH, or PATH_2, PATH_3 and so on if it exists."""
    if OmegaConf.select(_root_, "hydra.runtime.cwd") is None:
        raise ValueError(f"new_folder {path}: the configuration isn't complete")
    folders = OmegaConf.get_cache(_root_)["new_folder"]  # Hydra resolves the folder of one run several times
    if path not in folders:
        name, number = path, 1
        while not make_folder(Path(name)):
            number += 1
            name = f"{path}_{number}"
        folders[path] = name
    return str(folders[path])


def evaluations_folder(other: str, *, _root_: DictConfig) -> str:
    """Resolve ``${evaluations_folder:OTHER}``: the folder that holds the folders in which ``checkpoint`` is tested.

    It is ``evaluations`` in the folder of the run that wrote the checkpoint, and OTHER for a checkpoint that isn't in a
    run's folder.
    """
    if OmegaConf.is_missing(_root_, "checkpoint") or not _root_.checkpoint:  # the job says so
        return other
    path = expand_home(str(_root_.checkpoint))
    for folder in path.absolute().parents[:2]:  # a copy may lie beside the run's other files
        run = RunFolder(folder if path.is_absolute() else os.path.relpath(folder))
        if run.last_checkpoint.exists() or (run.has_configuration and not run.is_evaluation):
            return str(run.evaluations_folder)
    return other


def sweep_subfolder(number: int, *, _root_: DictConfig) -> str:
    """Resolve ``${sweep_subfolder:NUMBER}``: the name of a run's folder in the folder of its sweep.

    If the sweep has a run of this configuration already, its folder is taken, whatever its number was. A new run gets
    its number, with a hash of the configuration behind it if that folder is taken. Its folder is made here, with the
    configuration in it, so that two sweeps never share one.
    """
    sweep = Path(str(_root_.hydra.sweep.dir))
    config = plain_config(_root_)
    identity = _identify(config)
    for folder in folders_below(sweep):
        if _read_identity(folder.path, folder.config_file.stat().st_mtime_ns) == identity:
            return str(folder.path.relative_to(sweep))
    hydra = OmegaConf.masked_copy(_root_, "hydra")
    overrides = list_overrides(_root_.hydra)
    # before the folder is made: a sweep that is stopped in between leaves one that no run is found in
    texts = [OmegaConf.to_yaml(content) for content in (config, hydra, overrides)]
    name = str(number)
    if not make_folder(sweep / name):
        name = f"{number}-{identity[:8]}"
        if not make_folder(sweep / name):
            raise InputError(f"{sweep / name}: holds no configuration; delete it")
    RunFolder(sweep / name).write_configuration(*texts)
    return name


@cache
def _read_identity(folder: Path, modified: int) -> str:  # noqa: ARG001 (a file that has changed is read again)
    return _identify(RunFolder(folder).config)


def _identify(config: dict[str, Any]) -> str:
    """Return the identity of a configuration that may be as composed or as a run has stored it, with 1000 for 1e3."""
    from dml.run.evaluators import complete_metric_names  # late: it imports torch

    completed = OmegaConf.create(config)
    complete_metric_names(completed)
    values: Any = flat(OmegaConf.to_container(completed, resolve=False))
    integers = {key: int(value) for key, value in values.items() if isinstance(value, float) and value.is_integer()}
    return configuration_id(values | integers)


def resize_for(size: int) -> int:
    """Return the side that images are resized to before a crop of ``size`` pixels: 256 for 224, and in proportion."""
    return round(size * 256 / 224)


for resolver in (resize_for, learning_rate, unless, evaluations_folder, new_folder, sweep_subfolder):
    OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
