"""The runs of a study: their folders, their command lines, the data that they read, and how they are started."""

import shlex
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from dml.commands.error_lines import print_line
from dml.run.config_folders import quote
from dml.runtime import signals
from dml.runtime.configuration import check_set_elsewhere, is_below, key_of
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.processes import (
    python_command,
    python_environment,
    start_process,
    stop_processes,
)
from dml.runtime.run_folder import RunFolder, RunState
from dml.studies.experiments import IGNORED, compose, identify, shrink
from dml.studies.study import Training

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
}
"""The folder of each data set below the folder that holds them all."""

WEIGHTS_FOLDER = "weights"
"""The folder, beside those of the data sets, with the weights that no library offers."""

LIBRARY_WEIGHTS = (None, "packaged", "download")
"""Values of ``model.backbone.weights`` that name no file."""

SET_ELSEWHERE = {
    "seed": "seeds=...",
    "experiment": "the study",
    "resume": "the study",
    "hydra.run.dir": "--outputs",
}
"""What sets the keys that no override of every training may set."""

BASIC = "basic"
"""The launcher that runs trainings on this machine."""


@dataclass(frozen=True)
class Run:
    """A run: one training with one seed."""

    training: Training
    seed: int
    folder: Path

    @property
    def configuration(self) -> str:
        """The hash of what the run trains, whatever its seed (`dml.studies.experiments.identify`)."""
        return self.folder.parent.name

    @property
    def is_finished(self) -> bool:
        """Whether the run has its final metrics."""
        return RunFolder(self.folder).is_finished

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the finished run."""
        return RunFolder(self.folder).metrics()

    @property
    def seconds(self) -> float:
        """The seconds between the start and the end of the finished run; a resumed one counts from its last start."""
        folder = RunFolder(self.folder)
        if not folder.config_file.exists():
            return 0.0
        return folder.metrics_file.stat().st_mtime - folder.config_file.stat().st_mtime

    def read_score(self, metric: str) -> float:
        """Read a metric of the finished run, or its best value in the history if its name begins with "val/"."""
        if metric.startswith("val/"):
            return max(RunFolder(self.folder).values(metric).values())
        return self.metrics[metric]

    def discard_checkpoints(self, *, keeps_best: bool = False) -> None:
        """Delete the checkpoints and the report if the run is finished: of many runs they take gigabytes."""
        if self.is_finished:
            folder = RunFolder(self.folder)
            folder.report_file.unlink(missing_ok=True)
            if keeps_best:
                folder.last_checkpoint.unlink(missing_ok=True)
            else:
                shutil.rmtree(folder.last_checkpoint.parent, ignore_errors=True)

    def train_arguments(self, data: Path) -> list[str]:
        """Return the arguments of ``train`` that begin the run, or resume it if it was interrupted."""
        paths = [f"{key}={path}" for key, path in find_input_paths(self.training, data).items()]
        if RunFolder(self.folder).state == RunState.INTERRUPTED:
            return [f"resume={self.folder}", "trust=true", *paths]
        overrides = [f"experiment={self.training.experiment}", *self.training.overrides]
        return [*overrides, f"seed={self.seed}", *paths, f"hydra.run.dir={self.folder}"]


@dataclass(frozen=True)
class Plan:
    """Where and how the runs of a study are made."""

    outputs: Path
    seeds: int  # runs of each training; their seeds count from 0
    is_small: bool = False  # whether the embedded data and small networks stand in for the papers' own
    overrides: tuple[str, ...] = ()  # overrides of every training
    data: Path | None = None  # folder that holds the folders of the data sets; None if the user gave none
    jobs: int = 1  # number of runs at a time
    launcher: str = BASIC  # choice of conf/launcher
    _runs: dict[Training, list[Run]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_set_elsewhere(self.overrides, SET_ELSEWHERE)

    @property
    def launched(self) -> list[str]:
        """The overrides that set how a launcher starts runs."""
        return [override for override in self.overrides if override.startswith("hydra.")]

    @property
    def trained(self) -> list[str]:
        """The other overrides."""
        return [override for override in self.overrides if not override.startswith("hydra.")]

    @property
    def departures(self) -> list[str]:
        """The overrides with which trainings aren't those of the study, sorted."""
        return sorted(override for override in self.trained if not is_below(key_of(override), IGNORED))

    def list_runs(self, training: Training) -> list[Run]:
        """List the runs of a training, one for each seed; trainings of one configuration share their runs."""
        if training not in self._runs:  # composing is slow
            planned = (shrink(training) if self.is_small else training).extended(self.trained)
            config = compose(planned)
            folder = self.outputs / str(config.dataset.name) / identify(config, _find_own_root(config))
            self._runs[training] = [Run(planned, seed, folder / f"seed-{seed}") for seed in range(self.seeds)]
        return self._runs[training]

    def train(self, runs: Iterable[Run], purpose: str) -> bool:
        """Begin or resume the runs that aren't finished, each in a process of its own -> whether a run failed.

        A run that another command has finished by the time of its turn is refused, which is no failure. The lines that
        count the runs begin with ``purpose``.
        """
        distinct = list({run.folder: run for run in runs}.values())
        missing = [run for run in distinct if not run.is_finished]
        print_line(f"{purpose}: {len(distinct)} runs, {len(missing)} of them to be trained")
        commands = [self.command(run) for run in missing]  # before the threads: Hydra composes in one
        return run_processes(commands, self.jobs) and not all(run.is_finished for run in missing)

    def command(self, run: Run) -> list[str]:
        """Return the arguments of ``dml`` that begin or resume a run, here or by a launcher."""
        data = self.data or Path()
        if self.launcher == BASIC:
            return ["train", *run.train_arguments(data), *self.launched]
        paths = [f"{key}={quote(path)}" for key, path in find_input_paths(run.training, data).items()]
        folder = run.folder.absolute()
        return [  # a sweep of a single run, which the launcher begins, or resumes, where it pleases
            *("train", "-m", f"experiment={run.training.experiment}", *run.training.overrides),
            *(f"seed={run.seed}", *paths, f"launcher={self.launcher}", *self.launched),
            *(f"hydra.sweep.dir={quote(folder.parent)}", f"hydra.sweep.subdir={folder.name}"),
        ]


def _find_own_root(config: DictConfig) -> Path | None:
    """Return the absolute path of a data set of the user's own; None for one that is the same wherever it lies."""
    if config.dataset.root is None or config.dataset.name in DATASET_FOLDERS:
        return None
    return expand_home(config.dataset.root).absolute()


def find_input_paths(training: Training, data: Path) -> dict[str, Path]:
    """Return the keys that name inputs of a training, unless it names them itself, and their paths below ``data``."""
    config, paths = compose(training), {}
    is_set = "dataset.root" in map(key_of, training.overrides)
    if (folder := DATASET_FOLDERS.get(config.dataset.name)) and not is_set:
        paths["dataset.root"] = data / folder
    if (weights := OmegaConf.select(config, "model.backbone.weights")) not in LIBRARY_WEIGHTS:
        paths["model.backbone.weights"] = data / WEIGHTS_FOLDER / Path(weights).name
    return paths


def check_data(name: str, runs: Iterable[Run], data: Path | None) -> None:
    """Check that the data of runs that are going to be made exists; the name of the study is for the error message."""
    root = Path() if data is None else data
    for path in dict.fromkeys(path for run in runs for path in find_input_paths(run.training, root).values()):
        below = path.relative_to(root)
        if data is None:
            raise InputError(f"{name} wants {below}: give --data /data (make: DATA=/data), if it is /data/{below}")
        if not path.exists():
            raise InputError(f"--data {data}: no {below} in it, which {name} wants")


def run_processes(commands: Sequence[Sequence[str]], jobs: int = 1) -> bool:
    """Run ``python -m dml`` with the arguments of each command, so many at a time -> whether a command failed."""
    threads = {"OMP_NUM_THREADS": "1"} if jobs > 1 else {}
    environment = python_environment(**threads, **{signals.SILENT: "1"})

    def run_unless_stopped(number: int, arguments: Sequence[str]) -> int | None:
        if signals.is_requested():
            return None
        print_line(f"[{number} of {len(commands)}] {format_command(arguments)}")
        name, *overrides = arguments
        return start_process([*python_command(name), *overrides], env=environment).wait()

    notice = "stopping the runs under way after their steps"
    with signals.deferring(notice, stop_processes), ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run_unless_stopped, *numbered) for numbered in enumerate(commands, start=1)]
        while wait(running, timeout=1).not_done:  # a signal that comes just before a wait is handled behind it
            pass
        return any(finished.result() for finished in running)


def format_command(arguments: Sequence[str]) -> str:
    """Return the command line that runs ``dml`` with some arguments, as a shell takes it."""
    return shlex.join(["python", "-m", "dml", *arguments])
