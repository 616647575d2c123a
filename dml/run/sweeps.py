"""Sweeps: a run is found by its configuration, so that a sweep which is started again goes on where it stopped."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from yaml import YAMLError

from dml.ops.errors import InputError
from dml.run.stored import as_stored, checkpoint, is_finished, of_run, results

TRAIN = Path(__file__).resolve().parents[2] / "train.py"

console = Console(highlight=False, soft_wrap=True)


def runs_below(folder: Path) -> list[Path]:
    """The folders of the runs in a folder, at any depth, finished or not."""
    return [config.parents[1] for config in sorted(folder.rglob(".hydra/config.yaml"))]


def is_pruned(folder: Path) -> bool:
    """Whether the finished run in ``folder`` was ended early."""
    return bool(results(folder).get("pruned", False))


def run_folder(number: int, *, _root_: DictConfig) -> str:
    """The resolver behind ``hydra.sweep.subdir``: where in the sweep's folder a run is, or is going to be.

    A run of this configuration that is there already keeps its folder, whatever its number was. A new one gets its
    number, with a hash of the configuration behind it if another configuration has that folder. Hydra asks before it
    writes `.hydra/`; within the job it would be too late to choose.
    """
    sweep = Path(str(_root_.hydra.sweep.dir))
    own = _key({name: value for name, value in as_stored(_root_).items() if name != "hydra"})
    for folder in runs_below(sweep):
        if _key_of_run(folder, (folder / ".hydra" / "config.yaml").stat().st_mtime_ns) == own:
            return str(folder.relative_to(sweep))
    taken = (sweep / str(number) / ".hydra").exists()
    return f"{number}-{sha256(own.encode()).hexdigest()[:8]}" if taken else str(number)


OmegaConf.register_new_resolver("run_folder", run_folder, replace=True)


@cache
def _key_of_run(folder: Path, modified: int) -> str:  # noqa: ARG001 (a file that has changed is read again)
    try:
        return _key(as_stored(OmegaConf.load(folder / ".hydra" / "config.yaml")))
    except YAMLError:  # a run that starts at this moment is writing it
        return ""


def _key(plain: dict[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)


def one_run(config: DictConfig, folder: Path, overrides: list[str], train: Callable[[], Any]) -> float | None:
    """Sees to it that a run of the sweep is finished: starts it, goes on with it, or finds that it is.

    Args:
        config: of the run; ``resume`` is set if there is something to go on with.
        folder: of the run.
        overrides: of the run.
        train: does the work.

    Returns:
        The `objective`, if the sweeper asks for one.

    Raises:
        InputError: if the folder holds a run of another configuration.
    """
    from fcntl import LOCK_EX, flock  # Windows, which lacks it, can do all but sweep

    # a sweeper may propose the same values twice at a time: the second waits for the first, and is skipped
    with (folder / ".hydra" / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        started = checkpoint(folder, "last").exists()
        if _given_folder() and (started or is_finished(folder)) and of_run(folder).config != as_stored(config):
            raise InputError(f"hydra.sweep.subdir: {folder} holds a run of another configuration already")
        if is_finished(folder):
            console.print(f"[bold]skipped[/]  {folder}: finished already")
        else:
            if started:
                console.print(f"[bold]resumed[/]  {folder}")
                config.resume = str(folder)
            if config.trainer.devices == 1:
                train()
            else:
                _in_processes(folder, [*overrides, *([f"resume={folder}"] if started else [])], lock)
    optimises = HydraConfig.get().runtime.choices["hydra/sweeper"] != "basic"
    return objective(config, folder) if optimises else None


def _given_folder() -> bool:
    """Whether the user has said where the runs of the sweep are, instead of leaving it to `run_folder`."""
    sweep: Any = OmegaConf.to_container(HydraConfig.get().sweep, resolve=False)
    return "run_folder" not in sweep["subdir"]


def _in_processes(folder: Path, overrides: list[str], lock: IO[str]) -> None:
    """Trains on several devices, in processes of its own, as a single run does.

    Lightning starts the others with the command line of the first, and what they share ends with them alone. They
    hold the lock, too: should this process be killed, another sweep waits for them.

    Raises:
        InputError: if they fail; they have said why.
    """
    places = [f'hydra.run.dir="{folder}"', f'hydra.sweep.dir="{HydraConfig.get().sweep.dir}"']
    command = [sys.executable, str(TRAIN), *overrides, *places]
    done = subprocess.run(command, pass_fds=[lock.fileno()], check=False)  # noqa: S603
    if done.returncode:
        raise InputError(f"its processes ended with exit code {done.returncode}; the lines above say why")


def objective(config: DictConfig, folder: Path) -> float:
    """What a sweeper optimises: the metric ``checkpoints.monitor`` of the checkpoint that was tested, as validated.

    Raises:
        InputError: if there was no validation.
    """
    values = validated(folder, monitor(config))
    tested = results(folder)["step"]
    steps = [step for step in values if step <= tested]
    if not steps:
        raise InputError(
            f"no {monitor(config)} to optimise in {folder}: it takes a validation split and trainer.val_check_interval"
        )
    return values[max(steps)]


def monitor(config: DictConfig) -> str:
    """The name in metrics.csv of the validated metric that chooses the checkpoint."""
    return f"{'test' if config.evaluation.selection == 'test' else 'val'}/{config.checkpoints.monitor}"


def validated(folder: Path, metric: str) -> dict[int, float]:
    """{step: value} of a metric in the run's history."""
    history = folder / "metrics.csv"
    if not history.exists():
        return {}
    with history.open(newline="") as file:
        return {int(row["step"]): float(row[metric]) for row in csv.DictReader(file) if row.get(metric)}
