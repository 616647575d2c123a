"""The runs that a paper's table takes: where they are, what starts or resumes them, and what data they want."""

import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from omegaconf import DictConfig

from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder, RunState
from dml.run.cli import main
from dml.run.experiments import compose, identity, smoke
from dml.run.subprocesses import python_command, python_environment
from dml.run.tables import Table, Training

FOLDERS = {
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
"""The data sets' folders below the one that holds them all."""

WEIGHTS = "weights"
"""The folder beside them with the weights that no library offers."""

Start = Callable[[Sequence[Sequence[str]], Callable[[str], None], int], bool]
"""How commands are run: which, who is told of each, how many at a time -> whether one failed."""

LIBRARIES = (None, "packaged", "download")


@dataclass(frozen=True)
class Run:
    """One training with one seed.

    Args:
        training: what is trained.
        seed: of its random numbers.
        folder: where its results are, or will be.
    """

    training: Training
    seed: int
    folder: Path

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return RunFolder(self.folder).is_finished

    @property
    def started(self) -> bool:
        """Whether it has been interrupted, or is under way."""
        return RunFolder(self.folder).state in (RunState.INTERRUPTED, RunState.RUNNING)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The numbers of a finished run."""
        return RunFolder(self.folder).metrics()

    def arguments(self, data: Path) -> list[str]:
        """What ``train`` is to be given: to begin, or to go on with what was interrupted."""
        here = [f"{key}={path}" for key, path in wanted(compose(self.training), data).items()]
        if self.started:
            return [f"resume={self.folder}", *here]
        named = [f"experiment={self.training.experiment}", *self.training.overrides]
        return [*named, f"seed={self.seed}", *here, f"hydra.run.dir={self.folder}"]


@dataclass(frozen=True)
class Plan:
    """How tables are reproduced.

    Args:
        outputs: the folder for runs and tables.
        seeds: runs of each training, with seeds from 0 on.
        small: whether on the embedded data, see `smoke`.
        overrides: of every training.
    """

    outputs: Path
    seeds: int
    small: bool = False
    overrides: tuple[str, ...] = ()

    def runs(self, training: Training) -> list[Run]:
        """A run a seed; trainings that are the same by another name share theirs."""
        asked = (smoke(training) if self.small else training).extended(self.overrides)
        config = compose(asked)
        folder = self.outputs / str(config.dataset.name) / identity(config)
        return [Run(asked, seed, folder / f"seed-{seed}") for seed in range(self.seeds)]

    def all_runs(self, trainings: Iterable[Training]) -> list[Run]:
        """The runs of all trainings, each once, a whole set of trainings a seed."""
        found = {run.folder: run for training in trainings for run in self.runs(training)}
        return sorted(found.values(), key=lambda run: run.seed)

    def table_runs(self, table: Table) -> list[Run]:
        """`all_runs` of a table's trainings."""
        return self.all_runs(table.trainings())


def wanted(config: DictConfig, data: Path) -> dict[str, Path]:
    """The keys of a configuration that name places on this machine, and where below ``data`` they are looked for."""
    places = {}
    if folder := FOLDERS.get(config.dataset.name):
        places["dataset.root"] = data / folder
    if (weights := config.model.backbone.weights) not in LIBRARIES:
        places["model.backbone.weights"] = data / WEIGHTS / Path(weights).name
    return places


def check_data(target: str, runs: Sequence[Run], data: Path | None, otherwise: str = "") -> None:
    """Makes sure that the data of the runs that are to be made is there.

    Args:
        target: what ``make`` is asked for.
        runs: that it takes.
        data: the folder that holds the data sets'; None if it wasn't said.
        otherwise: what can be done without, for the end of the message.

    Raises:
        InputError: if it isn't; the first that is missing is named.
    """
    here = Path() if data is None else data
    for path in dict.fromkeys(place for run in runs for place in wanted(compose(run.training), here).values()):
        name = path.relative_to(here)
        if data is None:
            raise InputError(f"{target} wants {name}: DATA=/data make {target}, if it is /data/{name}")
        if not path.exists():
            raise InputError(f"DATA={data}: no {name} in it, which {target} wants{otherwise}")


def commands(runs: Iterable[Run], data: Path) -> list[str]:
    """The command line of each run that isn't finished, each once."""
    each = {run.folder: run for run in runs if not run.done}
    return [_shown(["train", *run.arguments(data)]) for run in each.values()]


def _shown(arguments: Sequence[str]) -> str:
    return shlex.join(["python", "-m", "dml", *arguments])


def processes(given: Sequence[Sequence[str]], say: Callable[[str], None], jobs: int = 1) -> bool:
    """Runs ``python -m dml`` with each of the arguments, such as "train", "loss=rll" -> whether one of them failed."""
    environment = python_environment(**({"OMP_NUM_THREADS": "1"} if jobs > 1 else {}))

    def run(number: int, arguments: Sequence[str]) -> int:
        say(f"[{number} of {len(given)}] {_shown(arguments)}")
        command, *overrides = arguments
        started = [*python_command(command), *overrides]
        return subprocess.run(started, check=False, env=environment).returncode  # noqa: S603

    return _at_a_time(run, given, jobs)


def forks(given: Sequence[Sequence[str]], say: Callable[[str], None], jobs: int = 1) -> bool:
    """As `processes`, for many small runs on CPU: each is a copy of a process that has loaded the libraries.

    To load them takes eight seconds. Not for several GPUs: Lightning would start the other processes with a wrong
    command.
    """
    if jobs > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # read when that process begins
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["dml.run.jobs"])

    def run(number: int, arguments: Sequence[str]) -> int | None:
        say(f"[{number} of {len(given)}] {_shown(arguments)}")
        process = server.Process(target=_run_command, args=(arguments,))
        process.start()
        process.join()
        return process.exitcode

    return _at_a_time(run, given, jobs)


def train(runs: Sequence[Run], data: Path, say: Callable[[str], None], jobs: int = 1, start: Start = processes) -> bool:
    """Makes or resumes each run in a process of its own -> whether one of them failed.

    Args:
        runs: in their order.
        data: the folder that holds the data sets'.
        say: is told each command.
        jobs: runs at a time; of several, each has one thread.
        start: `processes`, or `forks`.
    """
    # all commands first: Hydra composes in one thread at a time
    return start([["train", *run.arguments(data)] for run in runs], say, jobs)


def _run_command(arguments: Sequence[str]) -> None:
    sys.argv = ["dml", *arguments]
    main(arguments[0], is_named=True)


def _at_a_time(run: Callable[[int, Sequence[str]], int | None], given: Sequence[Sequence[str]], jobs: int) -> bool:
    with ThreadPoolExecutor(jobs) as pool:
        return any(list(pool.map(run, range(1, len(given) + 1), given)))
