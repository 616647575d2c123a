"""The runs of a sweep, each in a folder of its own: a finished one is skipped, an interrupted one goes on.

Importing the module registers the resolver ``${sweep_subfolder:NUMBER}``.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from dml.run.config_folders import list_overrides, quote
from dml.run.settings import Settings, read_settings
from dml.run.stored import plain_config, read_stored_run, write_configuration
from dml.runtime import processes
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError
from dml.runtime.processes import python_command
from dml.runtime.run_folder import HELD_FOLDER, RunFolder, configuration_id, folders_below, make_folder
from dml.runtime.signals import SILENT
from dml.runtime.text import console, in_markup


def finish_run(config: DictConfig, folder: RunFolder, overrides: list[str], train: Callable[[], Any]) -> float | None:
    """Start a run of a sweep, go on with it, or skip it if it is finished."""
    has_checkpoint = folder.last_checkpoint.exists()
    holds_run = has_checkpoint or folder.is_finished
    if _is_folder_chosen() and holds_run and read_stored_run(folder).config != plain_config(config):
        raise InputError(f"hydra.sweep.subdir: {folder.path} holds a run of another configuration already")
    if folder.is_finished:
        console.print(f"[bold]skipped[/]  {in_markup(folder.path)}: finished already")
    else:
        write_configuration(folder, config, overrides, began_in=folder)
        if has_checkpoint:
            console.print(f"[bold]resumed[/]  {in_markup(folder.path)}")
            config.resume = str(folder.path)
        if (count := processes.count_processes(config.trainer)) > 1:
            _train_in_processes(count, folder, [*overrides, *([f"resume={folder.path}"] if has_checkpoint else [])])
        else:
            train()
    return read_objective(read_settings(config, Settings), folder) if is_search() else None


def is_search() -> bool:
    """Return whether Hydra runs a sweep that searches for good values, instead of all that are given."""
    return bool(HydraConfig.get().runtime.choices["hydra/sweeper"] != "basic")


def _is_folder_chosen() -> bool:
    """Return whether the user has named the folders of the sweep's runs, instead of `sweep_subfolder`."""
    sweep: Any = OmegaConf.to_container(HydraConfig.get().sweep, resolve=False)
    return "sweep_subfolder" not in sweep["subdir"]


def _train_in_processes(count: int, folder: RunFolder, overrides: list[str]) -> None:
    """Train on several devices, in new processes, as a single run does, while this process holds the folder's lock."""
    folders = [f"hydra.run.dir={quote(folder.path)}", f"hydra.sweep.dir={quote(HydraConfig.get().sweep.dir)}"]
    command = [*python_command("train"), *overrides, *folders]
    code = processes.launch(command, count, **{SILENT: "1", HELD_FOLDER: str(folder.path)})
    if code:
        raise InputError(f"its processes ended with exit code {code}; the lines above say why")


def read_objective(settings: Settings, folder: RunFolder) -> float:
    """Return the value that a sweeper optimizes: the metric ``checkpoints.monitor`` of the tested checkpoint.

    The value is that of the validation at which the checkpoint was written.
    """
    metric = monitored_metric(settings)
    values, tested_step = folder.values(metric), folder.metrics()["step"]
    steps = [step for step in values if step <= tested_step]
    if not steps:
        raise InputError(
            f"no {metric} to optimize in {folder.path}: it takes a validation split and trainer.val_check_interval"
        )
    return values[max(steps)]


def monitored_metric(settings: Settings) -> str:
    """Return the name in metrics.csv of the validated metric that chooses the checkpoint."""
    return f"{'test' if settings.evaluation.selection == 'test' else 'val'}/{settings.checkpoints.monitor}"


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
        make_folder(sweep / name)  # if it is there, a sweep that was stopped has left it, without a configuration
    RunFolder(sweep / name).write_configuration(*texts)
    return name


@cache
def _read_identity(folder: Path, modified: int) -> str:  # noqa: ARG001 (a file that has changed is read again)
    return _identify(RunFolder(folder).config)


def _identify(config: dict[str, Any]) -> str:
    """Return the identity of a configuration that may be as composed or as a run has stored it, with 1000 for 1e3."""
    from dml.run.builders import complete_metric_names  # late: it imports torch

    completed = OmegaConf.create(config)
    complete_metric_names(completed)
    values: Any = flat(OmegaConf.to_container(completed, resolve=False))
    integers = {key: int(value) for key, value in values.items() if isinstance(value, float) and value.is_integer()}
    return configuration_id(values | integers)


OmegaConf.register_new_resolver(sweep_subfolder.__name__, sweep_subfolder, replace=True)
