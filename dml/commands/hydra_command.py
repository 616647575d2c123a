"""The command line: Hydra composes, a job runs, what the user got wrong is one line and exit code 2."""

import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dml.commands.arguments import asks_for_sweep, find_path, follow, quote_paths, read_arguments, replace_latest
from dml.commands.error_lines import explain, one_line_errors, print_line, told_errors
from dml.run import building, sweeps
from dml.run.config_folders import CONF, list_network_overrides, list_overrides, pretrained_name, quote
from dml.run.stored import StoredRun, check_foreign, name_choices, offer, read_checkpoint_run, read_stored_run
from dml.runtime import processes, signals
from dml.runtime.configuration import key_of
from dml.runtime.errors import InputError, show
from dml.runtime.files import expand_home
from dml.runtime.imports import import_from_working_folder, quick_imports, quiet
from dml.runtime.run_folder import RunFolder, note_new_folder, remove_unused_folder, remove_unused_folders
from dml.runtime.text import console, in_markup, printable

PREPARED = (".hydra", "splits.json", "raw_metrics.json", "fixed_neighbors.npz", "train.log")
"""What a training writes before its first step."""

JOBS = {
    "train": "dml.run.jobs.train",
    "evaluate": "dml.run.evaluate_job.evaluate",
    "prepare": "dml.run.prepare_job.prepare",
    "inspect": "dml.commands.inspect.inspect",
}
"""The function of each command, which is imported late: --help and --cfg need no torch, preparing no Lightning."""
Job = Callable[[DictConfig, RunFolder, list[str]], Any]
WITHOUT_RUN_FOLDER = ("prepare", "inspect")
"""The commands that write to the data set's cache folder alone."""
SWEEP_HINT = "the same command goes on with the sweep"
"""How a sweep goes on that a signal has stopped."""


@dataclass
class Outcome:
    """What a command in a Python session leaves behind: the folder of its run, and the exception that ended it."""

    folder: Path | None = None
    error: Exception | None = None


def run_from_python(command: str, words: Sequence[str]) -> Path:
    """Run one of `JOBS` in a Python session -> the folder of its run; what ends the shell's command is raised here."""
    signals.forget()
    before, outcome = [*sys.argv], Outcome()
    try:
        main(command, words, outcome=outcome)
    except SystemExit as end:
        if end.code not in (0, 128 + signal.SIGINT):
            raise InputError(f"dml {command}: ended with exit code {end.code}; the lines above say why") from end
    except Exception as error:
        outcome.error = error
    finally:
        sys.argv = before
    if outcome.error is not None:
        line = explain(outcome.error)
        raise outcome.error if line in (None, str(outcome.error)) else InputError(line) from outcome.error
    if outcome.folder is None:
        raise InputError(f"overrides={show([*words])}: they run no training; give KEY=VALUE alone")
    return outcome.folder


def main(command: str, words: Sequence[str] | None = None, *, outcome: Outcome | None = None) -> None:
    """Run one of `JOBS` with overrides and options, such as ["loss=rll", "--multirun", "seed=1,2"].

    A user's error ends with one line on stderr and exit code 2; ``debug=true`` shows its trace, as any other exception
    does. At SIGINT or SIGTERM it ends with one line and exit code 128 + the signal; see `dml.runtime.signals`.

    Args:
        command: one of `JOBS`.
        words: overrides and options; None means those of this process.
        outcome: object that gets the folder and the error of the run, for a caller in Python.
    """
    words = sys.argv[1:] if words is None else words
    is_debugged = "debug=true" in map(str.lower, words)
    # set before torch is loaded: threads that spin while they wait keep the loader's workers, or any other program,
    # from the cores that they in turn wait for; on two busy cores a step then takes ten times as long
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and neither prints a trace of its own nor exits with 1
    console.end_log()  # of an earlier command in this process
    quiet()  # what is read of a checkpoint imports Lightning before Hydra has called the job
    with one_line_errors(is_debugged, raises=outcome is not None):
        import_from_working_folder()
        typed = read_arguments(words, command)
        if not {"-h", "--help"}.isdisjoint(typed):
            print_line(format_help(command))
            return
        name, words, stored = _offer_stored(command, typed)
        arguments = sys.argv[1:] = follow(words)  # Hydra takes them from there
        if (folder := find_path(arguments, "hydra.run.dir")) and "${" not in str(folder):
            note_new_folder(folder)
        task = Task(command, typed, is_debugged, os.getpid(), stored, outcome)
        try:
            with stopping_workers(arguments):
                hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task.run)()
        except BaseException:
            remove_unused_folders()
            raise


def format_help(command: str) -> str:
    """Return the header of a command's YAML file, and the choices and values in it with their comments."""
    header, _, body = (CONF / f"{command}.yaml").read_text(encoding="utf-8").partition("\ndefaults:\n")
    text, keys = re.sub("^# ", "", header, flags=re.MULTILINE), body.partition("\nhydra:\n")[0]
    return f"{text}\n\nChoices and values, with their defaults; --cfg job prints all of them:\n{keys.rstrip()}"


def _offer_stored(command: str, typed: Sequence[str]) -> tuple[str, list[str], StoredRun | None]:
    """Let Hydra compose the values of the run that ``resume=`` or ``checkpoint=`` names, if one does.

    Returns:
        The name of the configuration to compose, the arguments of the command line, and what the run stored.
    """
    words = quote_paths([*map(replace_latest, typed)])
    if folder := find_path(words, "resume"):
        if asks_for_sweep(words):
            raise InputError(f"resume={folder}: goes on with one run, without --multirun")
        stored = read_stored_run(RunFolder(folder))
        return offer(command, stored, words), [*words, f"hydra.run.dir={quote(folder)}"], stored
    checkpoint = find_path(words, "checkpoint")
    if checkpoint and (name := pretrained_name(checkpoint)) is not None:
        keys = {key_of(word) for word in words}
        defaults = ("transform=imagenet", *list_network_overrides(name))
        return command, [*words, *(word for word in defaults if key_of(word) not in keys)], None
    if checkpoint:
        if checkpoint.is_dir():
            from dml.training.checkpoints import find_checkpoint  # late: it imports torch

            checkpoint = find_checkpoint(checkpoint)
            words = [*(word for word in words if key_of(word) != "checkpoint"), f"checkpoint={quote(checkpoint)}"]
        stored = read_checkpoint_run(checkpoint)
        return offer(command, stored, words), words, stored
    return command, words, None


@dataclass(frozen=True)
class Task:
    """A command that Hydra runs with each configuration that it composes: a sweep has many."""

    command: str  # one of `JOBS`
    typed: list[str]  # the overrides that the user has typed
    is_debugged: bool  # whether the user asks for the trace of an error
    process: int  # the id of the process that the user has started
    stored: StoredRun | None  # what the run that is resumed or tested stored
    outcome: Outcome | None  # for a caller in Python

    def run(self, config: DictConfig) -> Any:
        """Do the command's job, be it in this process or in a worker of a sweep."""
        is_worker = os.getpid() != self.process and signals.SILENT in os.environ
        if is_worker:
            signals.handle_signals()
            signals.state.notice = "stopping"  # for good: joblib kills the other workers if one ends
        quiet()  # before FAISS is imported
        import_from_working_folder()  # a launcher may have started this process
        folder = RunFolder(HydraConfig.get().runtime.output_dir)
        in_sweep = self.command == "train" and HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            signals.check()
            with building.trusting(True):  # what is typed, and a file's values after `check_foreign`
                return self._sweep(config, folder) if in_sweep else self._run(config, folder)
        except signals.Stopped:
            if not is_worker:
                raise
        except Exception as error:
            if self.outcome is None:
                raise
            self.outcome.error = error
        finally:
            console.end_log()

    def _sweep(self, config: DictConfig, folder: RunFolder) -> float | None:
        """Do one run of a sweep, or skip it."""
        signals.state.hint = lambda: SWEEP_HINT
        # a sweeper may propose the same values twice at a time: the second waits for the first, and is skipped
        with told_errors(folder.path, self.is_debugged), _hold(folder, wait=True):
            overrides = self._list_overrides()
            do_job = partial(self._prepare(config), config, folder, overrides)
            return sweeps.finish_run(config, folder, overrides, do_job)

    def _run(self, config: DictConfig, folder: RunFolder) -> Any:
        """Hold the run's folder, and check the configuration before the job reads or builds anything."""
        signals.state.hint = partial(_hint, self.command, folder)
        has_folder = self.command not in WITHOUT_RUN_FOLDER
        is_first = has_folder and processes.is_first()
        if self.outcome is not None:
            self.outcome.folder = folder.path
        # user errors end within the job: Hydra would announce its failure first
        with one_line_errors(self.is_debugged, raises=self.outcome is not None):
            trainer = OmegaConf.select(config, "trainer") if has_folder else None
            if trainer and processes.count_processes(trainer) > 1 and not processes.is_launched(trainer):
                self._launch(trainer, folder)
            with _hold(folder, wait=False) if is_first else nullcontext():
                if self.stored is not None:
                    check_foreign(self.command, config, self.typed)
                processes.name_folder(str(folder.path))
                if is_first:
                    self._announce(config, folder.path)
                return self._prepare(config)(config, folder, self._list_overrides())

    def _prepare(self, config: DictConfig) -> Job:
        """Check the values, and write each as the job takes it: 1e3 steps as 1000, for example -> the job."""
        with quick_imports():
            from dml.run.checks import check, check_search  # late: it imports torch

            job: Job = resolve_name(JOBS[self.command])
            quiet()  # Lightning sets its own level when it is imported
            check(self.command, config)  # it imports the targets
        if HydraConfig.get().mode == RunMode.MULTIRUN and self.command == "train" and sweeps.is_search():
            with one_line_errors(self.is_debugged):  # it ends the search: no other run would fare better
                check_search(config)
        return job

    def _list_overrides(self) -> list[str]:
        """List the overrides of the run for people, those of a resumed or tested run before its new ones."""
        overrides = list_overrides(HydraConfig.get())
        keys = {key_of(override) for override in overrides}
        stored = self.stored.overrides if self.stored is not None else []
        return [*(word for word in stored if key_of(word) not in keys), *overrides]

    def _launch(self, trainer: DictConfig, folder: RunFolder) -> NoReturn:
        """Run the command in a process for each device, and exit as they do."""
        with _hold(folder, wait=False):  # it removes the folder after an error
            if (nodes := trainer.get("num_nodes") or 1) > 1:
                raise InputError(f"trainer.num_nodes={nodes}: torchrun or srun starts the processes on each machine")
        command = [*processes.python_command(self.command), *self.typed, f"hydra.run.dir={quote(folder.path)}"]
        if (code := processes.launch(command, processes.count_processes(trainer))) == 2:
            remove_unused_folder(folder.path, PREPARED)
        sys.exit(code)

    def _announce(self, config: DictConfig, folder: Path) -> None:
        """Print one line about the run that begins: model, loss, data set and folder."""
        choices: Mapping[str, Any] = HydraConfig.get().runtime.choices
        if self.stored is not None:
            is_test = self.command == "evaluate"
            began_in = RunFolder.from_checkpoint(expand_home(config.checkpoint)) if is_test else RunFolder(folder)
            choices = name_choices(choices, began_in)
        # of a part that the command line replaced by a class of the user's, the name of the class
        model, loss, data = (
            choices.get(group) or OmegaConf.select(config, f"{group}._target_")
            for group in ("model", "loss", "dataset")
        )
        if (root := OmegaConf.select(config, "dataset.root")) is not None:
            data = f"{data} ({root})"
        subject = f"{model} with loss {loss}" if self.command == "train" else config.get("checkpoint")
        console.print(f"[bold]{self.command:9}[/]{in_markup(f'{subject} on {data}')}; results in {in_markup(folder)}")


@contextmanager
def _hold(folder: RunFolder, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a run's folder; an error before anything is written into the folder removes it.

    A mistake of the user's that a run of its own finds before its first step removes what the run has prepared, too.
    """
    with folder.hold(wait=wait):
        try:
            yield
        except BaseException as error:
            is_users = isinstance(error, InputError | HydraException | OmegaConfBaseException)
            remove_unused_folder(folder.path, PREPARED if not wait and is_users else ())
            raise


def _hint(command: str, folder: RunFolder) -> str:
    """Return how the work goes on that a signal has stopped."""
    if command == "train" and folder.last_checkpoint.exists():
        return f"{printable(shlex.quote(f'resume={folder.path}'))} goes on"
    return "" if command == "evaluate" else "the same command starts it again"


@contextmanager
def stopping_workers(arguments: Sequence[str]) -> Iterator[None]:
    """At a signal, wait for the workers that joblib has started for a sweep: each stops its run after a step."""
    if asks_for_sweep(arguments):
        signals.state.hint = lambda: SWEEP_HINT
    if not asks_for_sweep(arguments) or {"launcher=joblib", "hydra/launcher=joblib"}.isdisjoint(arguments):
        yield
        return
    os.environ[signals.SILENT] = "1"  # the process that waits for them tells the user
    try:
        with signals.deferring("stopping the runs under way after their steps", _stop_workers):
            yield
    finally:
        del os.environ[signals.SILENT]


def _stop_workers() -> None:
    logging.disable()  # Optuna's sweeper would announce that the runs which were stopped have no result
    processes.stop_processes()
