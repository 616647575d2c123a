"""Sweeps: a run is found by its configuration, so that a sweep which is started again goes on where it stopped."""

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder, configuration_id, folders_below
from dml.run.config_folders import search_path_overrides
from dml.run.stored import as_stored, of_run, write_configuration
from dml.run.subprocesses import python_command, python_environment

console = Console(highlight=False, soft_wrap=True)


def is_pruned(folder: RunFolder) -> bool:
    """Whether the finished run in ``folder`` was ended early by the sweep's pruner."""
    return bool(folder.metrics().get("pruned", False))


def sweep_subfolder(number: int, *, _root_: DictConfig) -> str:
    """The resolver behind ``hydra.sweep.subdir``: where in the sweep's folder a run is, or is going to be.

    A run of this configuration that is there already keeps its folder, whatever its number was. A new one gets its
    number, with a hash of the configuration behind it if that folder is taken. Its folder is made here, with the
    configuration in it, so that two sweeps never share one.
    """
    sweep = Path(str(_root_.hydra.sweep.dir))
    config = {name: value for name, value in as_stored(_root_).items() if name != "hydra"}
    identity = configuration_id(config)
    for folder in folders_below(sweep):
        if _identity(folder.path, folder.config_file.stat().st_mtime_ns) == identity:
            return str(folder.path.relative_to(sweep))
    name = str(number)
    if not _claim(sweep / name):
        name = f"{number}-{identity[:8]}"
        if not _claim(sweep / name):
            raise InputError(f"{sweep / name}: holds no configuration; delete it")
    hydra = OmegaConf.masked_copy(_root_, "hydra")
    given = OmegaConf.select(_root_, "hydra.overrides.task", default=[])
    overrides = [*search_path_overrides(_root_.hydra), *given]
    RunFolder(sweep / name).write_configuration(*map(OmegaConf.to_yaml, (config, hydra, overrides)))
    return name


OmegaConf.register_new_resolver("sweep_subfolder", sweep_subfolder, replace=True)


def new_folder(path: str) -> str:
    """The resolver behind ``hydra.run.dir``: makes the folder ``path``, or path_2, path_3 and so on if it exists."""
    name, number = path, 1
    while not _claim(Path(name)):
        number += 1
        name = f"{path}_{number}"
    return name


# cached: Hydra asks several times for the folder of one run
OmegaConf.register_new_resolver("new_folder", new_folder, replace=True, use_cache=True)


def _claim(folder: Path) -> bool:
    """Makes a folder -> whether this process did, and no other."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


@cache
def _identity(folder: Path, modified: int) -> str:  # noqa: ARG001 (a file that has changed is read again)
    return configuration_id(RunFolder(folder).config)


def one_run(config: DictConfig, folder: RunFolder, overrides: list[str], train: Callable[[], Any]) -> float | None:
    """Sees to it that a run of the sweep is finished: starts it, goes on with it, or finds that it is.

    Args:
        config: the run's configuration; ``resume`` is set in it if there is a checkpoint to go on from.
        folder: the run's folder, whose lock this process holds.
        overrides: what the command line says of the run.
        train: trains and tests the run in this process.

    Returns:
        The `objective`, if the sweeper asks for one.

    Raises:
        InputError: if the folder holds a run of another configuration.
    """
    started = folder.last_checkpoint.exists()
    if _is_folder_given() and (started or folder.is_finished) and of_run(folder).config != as_stored(config):
        raise InputError(f"hydra.sweep.subdir: {folder.path} holds a run of another configuration already")
    if folder.is_finished:
        console.print(f"[bold]skipped[/]  {escape(str(folder.path))}: finished already")
    else:
        write_configuration(folder, config, overrides)
        if started:
            console.print(f"[bold]resumed[/]  {escape(str(folder.path))}")
            config.resume = str(folder.path)
        if config.trainer.devices == 1:
            train()
        else:
            _train_in_processes(folder, [*overrides, *([f"resume={folder.path}"] if started else [])])
    optimises = HydraConfig.get().runtime.choices["hydra/sweeper"] != "basic"
    return objective(config, folder) if optimises else None


def _is_folder_given() -> bool:
    """Whether the user has said where the runs of the sweep are, instead of leaving it to `sweep_subfolder`."""
    sweep: Any = OmegaConf.to_container(HydraConfig.get().sweep, resolve=False)
    return "sweep_subfolder" not in sweep["subdir"]


def _train_in_processes(folder: RunFolder, overrides: list[str]) -> None:
    """Trains on several devices, in processes of its own, as a single run does.

    Lightning starts the others with the command line of the first, and what they share ends with them alone. The first
    of them holds the folder's lock as well: should this process be killed, another sweep waits for it.

    Raises:
        InputError: if they fail; they have said why.
    """
    places = [f'hydra.run.dir="{folder.path}"', f'hydra.sweep.dir="{HydraConfig.get().sweep.dir}"']
    command = [*python_command("train"), *overrides, *places]
    lock = folder.lock
    environment = python_environment(**lock.environment)
    done = subprocess.run(command, pass_fds=[lock.descriptor], env=environment, check=False)  # noqa: S603
    if done.returncode:
        raise InputError(f"its processes ended with exit code {done.returncode}; the lines above say why")


def objective(config: DictConfig, folder: RunFolder) -> float:
    """What a sweeper optimises: the metric ``checkpoints.monitor`` of the checkpoint that was tested, as validated.

    Raises:
        InputError: if there was no validation.
    """
    values = folder.values(monitor(config))
    tested = folder.metrics()["step"]
    steps = [step for step in values if step <= tested]
    if not steps:
        raise InputError(
            f"no {monitor(config)} to optimise in {folder.path}: it takes a validation split and "
            "trainer.val_check_interval"
        )
    return values[max(steps)]


def monitor(config: DictConfig) -> str:
    """The name in metrics.csv of the validated metric that chooses the checkpoint."""
    return f"{'test' if config.evaluation.selection == 'test' else 'val'}/{config.checkpoints.monitor}"
