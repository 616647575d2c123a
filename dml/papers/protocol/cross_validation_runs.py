"""The trainings of the protocol: the trials of each search in turn, and then the tested runs of the best trials."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dml.commands.failures.error_lines import print_line
from dml.ops.run_folders.run_folder import RunFolder
from dml.papers.experiments import compose
from dml.papers.plans import Plan, PlannedRun, find_input_paths, run_forks, run_processes
from dml.papers.protocol.cross_validation import SEARCHED, TESTED, CrossValidation, Method
from dml.papers.protocol.search_spaces import ParameterSearch, Proposal
from dml.papers.tables.paper_tables import Training
from dml.run.config_folders import quote

CRITERION = "level0/map@r"
"""The metric of the validation classes that the search maximises."""
BASIC = "basic"
"""The launcher that runs trainings on this machine."""


@dataclass(frozen=True)
class Trial:
    """A tried configuration.

    Args:
        proposal: values of the searched keys.
        runs: the training of each fold.
    """

    proposal: Proposal
    runs: list[PlannedRun]

    @property
    def is_finished(self) -> bool:
        """Whether all folds are trained."""
        return all(run.is_finished for run in self.runs)

    @property
    def values(self) -> list[float]:
        """MAP@R of the best validation of each fold."""
        return [run.metrics[CRITERION] for run in self.runs]

    @property
    def value(self) -> float:
        """What the search maximises: the mean over the folds."""
        return float(np.mean(self.values))


class Searches:
    """The searches of all methods, as far as their runs are finished.

    Args:
        setting: data set, folds, seeds and overrides that the trainings of all losses share.
        plan: plan of the runs; a search takes seed 0 alone.
    """

    def __init__(self, setting: CrossValidation, plan: Plan) -> None:
        self.setting = setting
        self._list_runs: Callable[[Training], list[PlannedRun]] = cache(plan.list_runs)  # composing is slow
        self._searches: dict[str, ParameterSearch] = {}
        self._trials: dict[str, list[Trial]] = {}

    def list_trials(self, method: Method, number: int) -> list[Trial]:
        """List the first trials of a method, up to a number; fewer while an earlier one isn't finished."""
        if method.loss not in self._searches:
            self._searches[method.loss] = ParameterSearch(method.loss, method.ranges)
        search = self._searches[method.loss]
        trials = self._trials.setdefault(method.loss, [])
        while len(trials) < number and (not trials or trials[-1].is_finished):
            if trials:
                search.tell(trials[-1].value)
            proposal = search.ask()
            trainings = self.setting.list_trainings(method, proposal, SEARCHED)
            trials.append(Trial(proposal, [self._list_runs(training)[0] for training in trainings]))
        return trials[:number]

    def find_best(self, method: Method) -> Trial | None:
        """Return the best trial, the first of equal ones; None as long as the search isn't complete."""
        trials = self.list_trials(method, self.setting.trials)
        is_complete = len(trials) == self.setting.trials and all(trial.is_finished for trial in trials)
        return max(trials, key=lambda trial: trial.value) if is_complete else None

    def list_tested_runs(self, method: Method) -> list[list[PlannedRun]]:
        """List the tested runs, for each seed those of all folds; none as long as the search isn't complete."""
        best = self.find_best(method)
        if best is None:
            return []
        trainings = self.setting.list_trainings(method, best.proposal, TESTED)
        return [list(runs) for runs in zip(*map(self._list_runs, trainings), strict=True)]


@dataclass(frozen=True)
class TrainingLauncher:
    """How trainings are begun.

    Args:
        data: folder that holds the folders of the data sets.
        jobs: number of trainings at a time.
        launcher: choice of conf/launcher.
        options: overrides of the launcher, such as ``hydra.launcher.partition=gpu``.
    """

    data: Path
    jobs: int = 1
    launcher: str = BASIC
    options: tuple[str, ...] = ()

    def train(self, runs: Sequence[PlannedRun]) -> bool:
        """Begin or resume each run in a process of its own -> whether a run failed."""
        if self.launcher == BASIC:
            commands = [["train", *run.train_arguments(self.data), *self.options] for run in runs]
            return run_forks(commands, print_line, self.jobs)
        return run_processes([self.sweep_arguments(run) for run in runs], print_line, self.jobs)

    def sweep_arguments(self, run: PlannedRun) -> list[str]:
        """Return the arguments of a sweep of a single run, which a launcher begins, or resumes, where it pleases."""
        paths = [f"{key}={quote(path)}" for key, path in find_input_paths(compose(run.training), self.data).items()]
        folder = run.folder.absolute()
        return [
            *("train", "-m", f"experiment={run.training.experiment}", *run.training.overrides),
            *(f"seed={run.seed}", *paths, f"launcher={self.launcher}", *self.options),
            *(f"hydra.sweep.dir={quote(folder.parent)}", f"hydra.sweep.subdir={folder.name}"),
        ]


def train_searches(methods: Sequence[Method], searches: Searches, launcher: TrainingLauncher) -> bool:
    """Train what is missing of all searches, one trial of each method after the other -> whether a run failed."""
    has_failed = False
    trials = searches.setting.trials
    for number in range(1, trials + 1):
        newest = [searches.list_trials(method, number) for method in methods]
        runs = [run for listed in newest if len(listed) == number for run in listed[-1].runs]
        has_failed |= _train(runs, f"trial {number} of {trials}", launcher)
        for run in runs:
            run.discard_checkpoints()
    return has_failed


def train_tested_runs(methods: Sequence[Method], searches: Searches, launcher: TrainingLauncher) -> bool:
    """Train what is missing of the runs that are tested -> whether a run failed."""
    groups = [group for method in methods for group in searches.list_tested_runs(method)]
    return _train([run for group in groups for run in group], "tested runs", launcher)


def _train(runs: Iterable[PlannedRun], purpose: str, launcher: TrainingLauncher) -> bool:
    distinct = list({run.folder: run for run in runs}.values())
    missing = [run for run in distinct if not run.is_finished]
    print_line(f"{purpose}: {len(distinct)} runs, {len(missing)} of them to be trained")
    return launcher.train(missing)


def measure_seconds(runs: Iterable[PlannedRun]) -> float:
    """Add up the seconds between the start and the end of finished runs; a resumed one counts from its last start."""
    folders = [RunFolder(run.folder) for run in runs]
    return sum(folder.metrics_file.stat().st_mtime - folder.config_file.stat().st_mtime for folder in folders)
