"""The runs that reproduce a paper's tables: their folders, their command lines, and the data that they read."""

import multiprocessing
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from multiprocessing import forkserver
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from dml.commands.hydra_command import main
from dml.ops.configuration.nested import is_below
from dml.ops.configuration.overrides import check_set_elsewhere, key_of
from dml.ops.errors import InputError
from dml.ops.filesystem.paths import expand_home
from dml.ops.run_folders.run_folder import RunFolder, RunState
from dml.papers.experiments import IGNORED_KEYS, compose, identify, shrink
from dml.papers.tables.paper_tables import Table, Training
from dml.runtime import signals
from dml.runtime.processes import (
    python_command,
    python_environment,
    run_process,
    stop_processes,
    waiting_for_processes,
)

DATASET_FOLDERS = {
    "sop": "Stanford_Online_Products",
    "cub200": "CUB_200_2011",
    "cars196": "cars196",
    "inshop": "inshop",
    "inat_base": "inat2018",
    "inat_full": "inat2018",
    "dyml_vehicle": "dyml_vehicle",
    "dyml_animal": "dyml_animal",
    "dyml_product": "dyml_product",
    "grocery": "grocery/grocery.csv",
}
"""The folder or file of each data set below the folder that holds them all."""

WEIGHTS_FOLDER = "weights"
"""The folder, beside those of the data sets, with the weights that no library offers."""

LIBRARY_WEIGHTS = (None, "packaged", "download")
"""Values of ``model.backbone.weights`` that name no file."""

SET_ELSEWHERE = {"seed": "--seeds", "experiment": "the plan", "resume": "the plan", "hydra.run.dir": "--outputs"}
"""What sets the keys that no override of every training may set."""

Report = Callable[[str], None]
"""Takes a line of progress, such as a command that begins."""

Runner = Callable[[Sequence[Sequence[str]], Report, int], bool]
"""Runs commands, reports each of them, so many at a time -> whether a command failed."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan: one training with one seed.

    Args:
        training: the experiment with its overrides.
        seed: seed of the run's random numbers.
        folder: folder of the run's results, which may not exist yet.
    """

    training: Training
    seed: int
    folder: Path

    @property
    def configuration(self) -> str:
        """The hash of what the run trains, whatever its seed (`dml.papers.experiments.identify`)."""
        return self.folder.parent.name

    @property
    def is_finished(self) -> bool:
        """Whether the run has its final metrics."""
        return RunFolder(self.folder).is_finished

    @property
    def is_started(self) -> bool:
        """Whether the run was interrupted, or is running."""
        return RunFolder(self.folder).state in (RunState.INTERRUPTED, RunState.RUNNING)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the finished run."""
        return RunFolder(self.folder).metrics()

    def discard_checkpoints(self) -> None:
        """Delete the checkpoints and the report if the run is finished: of many runs they take gigabytes."""
        if self.is_finished:
            shutil.rmtree(RunFolder(self.folder).last_checkpoint.parent, ignore_errors=True)
            RunFolder(self.folder).report_file.unlink(missing_ok=True)

    def train_arguments(self, data: Path) -> list[str]:
        """Return the arguments of ``train`` that begin the run, or resume it if it was interrupted."""
        paths = [f"{key}={path}" for key, path in find_input_paths(compose(self.training), data).items()]
        if self.is_started:
            return [f"resume={self.folder}", *paths]
        overrides = [f"experiment={self.training.experiment}", *self.training.overrides]
        return [*overrides, f"seed={self.seed}", *paths, f"hydra.run.dir={self.folder}"]


@dataclass(frozen=True)
class Plan:
    """A plan of the runs that reproduce tables.

    Args:
        outputs: folder for runs and tables.
        seeds: number of runs of each training; their seeds count from 0.
        is_small: whether the embedded data and small networks stand in for the papers' own, see `shrink`.
        overrides: overrides of every training.

    Raises:
        InputError: if an override sets what the plan sets.
    """

    outputs: Path
    seeds: int
    is_small: bool = False
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_set_elsewhere(self.overrides, SET_ELSEWHERE)

    @property
    def departures(self) -> list[str]:
        """The overrides with which trainings aren't those of the papers, sorted."""
        return sorted(override for override in self.overrides if not is_below(key_of(override), IGNORED_KEYS))

    def name_results(self, name: str) -> str:
        """Return the name of a file of results: those of changed trainings don't replace those of the paper's."""
        if not self.departures:
            return name
        return f"{name}-{sha256(shlex.join(self.departures).encode()).hexdigest()[:8]}"

    def list_runs(self, training: Training) -> list[PlannedRun]:
        """List the runs of a training, one for each seed; trainings of one configuration share their runs."""
        planned = (shrink(training) if self.is_small else training).extended(self.overrides)
        config = compose(planned)
        folder = self.outputs / str(config.dataset.name) / identify(config, _find_own_root(config))
        return [PlannedRun(planned, seed, folder / f"seed-{seed}") for seed in range(self.seeds)]

    def list_all_runs(self, trainings: Iterable[Training]) -> list[PlannedRun]:
        """List the runs of several trainings, each once; the runs of one seed come before those of the next."""
        runs = {run.folder: run for training in trainings for run in self.list_runs(training)}
        return sorted(runs.values(), key=lambda run: run.seed)

    def list_table_runs(self, table: Table) -> list[PlannedRun]:
        """List the runs of a table's trainings, see `list_all_runs`."""
        return self.list_all_runs(table.trainings)


def _find_own_root(config: DictConfig) -> Path | None:
    """Return the absolute path of a data set of the user's own; None for one that is the same wherever it lies."""
    if config.dataset.root is None or config.dataset.name in DATASET_FOLDERS:
        return None
    return expand_home(config.dataset.root).absolute()


def find_input_paths(config: DictConfig, data: Path) -> dict[str, Path]:
    """Return the keys of a configuration that name inputs on this machine, and the inputs' paths below ``data``."""
    paths = {}
    if folder := DATASET_FOLDERS.get(config.dataset.name):
        paths["dataset.root"] = data / folder
    if (weights := OmegaConf.select(config, "model.backbone.weights")) not in LIBRARY_WEIGHTS:
        paths["model.backbone.weights"] = data / WEIGHTS_FOLDER / Path(weights).name
    return paths


def check_data(target: str, runs: Sequence[PlannedRun], data: Path | None, advice: str = "") -> None:
    """Check that the data of runs that are going to be made exists.

    Args:
        target: name of the table, figure or claims, such as "table rll-I", for the error message.
        runs: runs that are going to be made.
        data: folder that holds the folders of the data sets; None if the user gave none.
        advice: end of the error message: what the user can do without the data.

    Raises:
        InputError: if a folder or a file is missing, or an override names the folder of a data set.
    """
    root = Path() if data is None else data
    paths: list[Path] = []
    for run in runs:
        inputs = find_input_paths(compose(run.training), root)
        if "dataset.root" in inputs:
            check_set_elsewhere(run.training.overrides, {"dataset.root": "--data"})
        paths += inputs.values()
    for path in dict.fromkeys(paths):
        name = path.relative_to(root)
        if data is None:
            raise InputError(f"{target} wants {name}: give --data /data (make: DATA=/data), if it is /data/{name}")
        if not path.exists():
            raise InputError(f"--data {data}: no {name} in it, which {target} wants{advice}")


def list_commands(runs: Iterable[PlannedRun], data: Path) -> list[str]:
    """List the command line of each run that isn't finished, each once."""
    unfinished = {run.folder: run for run in runs if not run.is_finished}
    return [format_command(["train", *run.train_arguments(data)]) for run in unfinished.values()]


def run_processes(commands: Sequence[Sequence[str]], report: Report, jobs: int = 1) -> bool:
    """Run ``python -m dml`` with the arguments of each command -> whether a command failed.

    Args:
        commands: arguments of each command, such as ["train", "loss=rll"].
        report: takes the line of each command before the command begins.
        jobs: commands that run at a time; with several, each has one thread.
    """
    threads = {"OMP_NUM_THREADS": "1"} if jobs > 1 else {}
    environment = python_environment(**threads, **{signals.SILENT: "1"})

    def run(number: int, arguments: Sequence[str]) -> int:
        report(f"[{number} of {len(commands)}] {format_command(arguments)}")
        name, *overrides = arguments
        return run_process([*python_command(name), *overrides], env=environment)

    return _run_at_a_time(run, commands, jobs)


def run_forks(commands: Sequence[Sequence[str]], report: Report, jobs: int = 1) -> bool:
    """Do the work of `run_processes` for many small runs on CPU, in copies of a process that has loaded the libraries.

    Loading the libraries takes eight seconds. A copy can't train on several GPUs.
    """
    if jobs > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # the copied process reads it when it begins
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["dml.run.jobs"])
    # It loads libraries, and Ctrl-C would make it print a trace. Started processes inherit the mask of the thread that
    # starts them; a copy gets SIGTERM from this process.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def run(number: int, arguments: Sequence[str]) -> int | None:
        report(f"[{number} of {len(commands)}] {format_command(arguments)}")
        process = server.Process(target=_run_command, args=(arguments,))
        process.start()
        if signals.is_requested():  # it came too early for this process
            stop_processes()
        process.join()
        return process.exitcode

    return _run_at_a_time(run, commands, jobs)


def train_runs(
    runs: Sequence[PlannedRun], data: Path, report: Report, jobs: int = 1, runner: Runner = run_processes
) -> bool:
    """Begin or resume each run in a process of its own -> whether a run failed.

    A run that another command has finished by the time of its turn is refused, which is no failure.

    Args:
        runs: runs in the order in which they begin.
        data: folder that holds the folders of the data sets.
        report: takes the line of each command before the command begins.
        jobs: runs at a time; with several, each has one thread.
        runner: `run_processes` or `run_forks`.
    """
    commands = [["train", *run.train_arguments(data)] for run in runs]  # before the threads: Hydra composes in one
    return runner(commands, report, jobs) and not all(run.is_finished for run in runs)


def format_command(arguments: Sequence[str]) -> str:
    """Return the command line that runs ``dml`` with some arguments, as a shell takes it."""
    return shlex.join(["python", "-m", "dml", *arguments])


def _run_command(arguments: Sequence[str]) -> None:
    signals.handle_signals()
    signals.state.is_silent = True
    sys.argv = ["dml", *arguments]
    main(arguments[0], is_named=True)


def _run_at_a_time(
    run: Callable[[int, Sequence[str]], int | None], commands: Sequence[Sequence[str]], jobs: int
) -> bool:
    def run_unless_stopped(number: int, arguments: Sequence[str]) -> int | None:
        return None if signals.is_requested() else run(number, arguments)

    with waiting_for_processes(), ThreadPoolExecutor(jobs) as pool:
        return any(list(pool.map(run_unless_stopped, range(1, len(commands) + 1), commands)))
