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

from dml.commands.arguments import (
    asks_for_sweep,
    find_path,
    put_options_first,
    quote_paths,
    read_arguments,
    replace_latest,
)
from dml.commands.error_lines import explain, one_line_errors, print_line, told_errors
from dml.commands.start import follow, import_from_working_folder, quiet
from dml.run import building, sweeps
from dml.run.config_folders import (
    CONF,
    list_network_overrides,
    list_overrides,
    pretrained_name,
    quote,
)
from dml.run.stored import StoredRun, check_foreign, name_choices, offer, read_checkpoint_run, read_stored_run
from dml.runtime import processes, ranks, signals
from dml.runtime.configuration import key_of
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.new_folders import note_new_folder, remove_unused_folder, remove_unused_folders
from dml.runtime.paths import expand_home
from dml.runtime.quick_imports import quick_imports
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import in_markup, printable

PREPARED = (".hydra", "splits.json", "raw_metrics.json", "fixed_neighbors.npz", "train.log")
"""What a training writes before its first step."""

JOBS = {
    "train": "dml.run.jobs.train",
    "evaluate": "dml.run.evaluate_job.evaluate",
    "prepare": "dml.run.prepare_job.prepare",
    "inspect": "dml.commands.inspect.inspect",
}
"""The function of each command, which is imported late: --help and --cfg need no torch, preparing no Lightning."""
WITHOUT_RUN_FOLDER = ("prepare", "inspect")
"""The commands that write to the data set's cache folder alone."""


@dataclass
class Outcome:
    """What a command in a Python session leaves behind: the folder of its run, and the exception that ended it."""

    folder: Path | None = None
    error: Exception | None = None


def run_from_python(command: str, words: Sequence[str]) -> Path:
    """Run one of `JOBS` in a Python session -> the folder of its run; what ends the shell's command is raised here.

    Raises:
        InputError: if the words can't be used, or the processes of a training on several devices fail.
    """
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
    if (mistake := outcome.error) is not None:
        line = explain(mistake)
        raise mistake if line in (None, str(mistake)) else InputError(line) from mistake
    assert outcome.folder is not None
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
    console.end_log()  # of an earlier command in this process
    quiet()  # what is read of a checkpoint imports Lightning before Hydra has called the job
    # Hydra is told to raise: it would print its own shortened trace and exit with 1
    with one_line_errors(is_debugged, raises=outcome is not None), _environment("HYDRA_FULL_ERROR", "1"):
        import_from_working_folder()
        typed = read_arguments(words)
        if not {"-h", "--help"}.isdisjoint(typed):
            print_line(format_help(command))
            return
        name, words, stored = _offer_stored(command, typed)
        arguments = sys.argv[1:] = follow(put_options_first(words))  # Hydra takes them from there
        if (folder := find_path(arguments, "hydra.run.dir")) and "${" not in str(folder):
            note_new_folder(folder)
        task = Task(command, typed, is_debugged, os.getpid(), stored, outcome)
        with stopping_workers(arguments), _removing_unused_folders():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task.run)()


def format_help(command: str) -> str:
    """Return the header of a command's YAML file, and the choices and values in it with their comments."""
    header, _, body = (CONF / f"{command}.yaml").read_text(encoding="utf-8").partition("\ndefaults:\n")
    text, keys = re.sub("^# ", "", header, flags=re.MULTILINE), body.partition("\nhydra:\n")[0]
    return f"{text}\n\nChoices and values, with their defaults; --cfg job prints all of them:\n{keys.rstrip()}"


@dataclass(frozen=True)
class Task:
    """A command that Hydra runs with each configuration that it composes: a sweep has many.

    Args:
        command: one of `JOBS`.
        typed: overrides that the user has typed.
        is_debugged: whether the user asks for the trace of an error.
        process: id of the process that the user has started.
        stored: what the run that is resumed or tested stored; None for a new run.
        outcome: object that gets the folder and the error of the run, for a caller in Python; None on the command line.
    """

    command: str
    typed: list[str]
    is_debugged: bool
    process: int
    stored: StoredRun | None = None
    outcome: Outcome | None = None

    def run(self, config: DictConfig) -> Any:
        """Do the command's job, be it in this process or in a worker of a sweep."""
        try:
            if os.getpid() != self.process and signals.SILENT in os.environ:
                return run_in_worker(partial(self._run, config))
            return self._run(config)
        except Exception as error:
            if self.outcome is None:
                raise
            self.outcome.error = error
            return None
        finally:
            console.end_log()

    def _run(self, config: DictConfig) -> Any:
        """Hold the run's folder, and check the configuration before the job reads or builds anything."""
        quiet()  # before FAISS is imported
        import_from_working_folder()  # a launcher may have started this process
        hydra_config = HydraConfig.get()
        folder = RunFolder(hydra_config.runtime.output_dir)
        if self.outcome is not None:
            self.outcome.folder = folder.path
        overrides = list_overrides(hydra_config)
        is_test = self.command == "evaluate" and self.stored is not None
        began_in = RunFolder.from_checkpoint(expand_home(config.checkpoint)) if is_test else folder
        if self.stored is not None:
            keys = {key_of(override) for override in overrides}
            overrides = [*(word for word in self.stored.overrides if key_of(word) not in keys), *overrides]
        in_sweep = self.command == "train" and hydra_config.mode == RunMode.MULTIRUN
        signals.state.hint = sweep_hint if in_sweep else partial(_hint, self.command, folder)
        has_folder = self.command not in WITHOUT_RUN_FOLDER
        is_first = has_folder and ranks.is_first()

        def do_job() -> Any:
            with quick_imports():
                job = resolve_name(JOBS[self.command])
            return job(config, folder, overrides)

        # user errors end within the job: Hydra would announce its failure first
        alone = partial(one_line_errors, self.is_debugged, raises=self.outcome is not None)
        with told_errors(folder.path, self.is_debugged) if in_sweep else alone():
            trainer = OmegaConf.select(config, "trainer") if has_folder and not in_sweep else None
            if trainer and ranks.count_processes(trainer) > 1 and not ranks.is_launched(trainer):
                self._launch(trainer, folder)
            # a sweeper may propose the same values twice at a time: the second waits for the first, and is skipped
            with (
                _hold(folder, wait=in_sweep) if is_first else nullcontext(),
                building.trusting(True),  # what is typed, and a file's values after `check_foreign`
            ):
                if self.stored is not None:
                    check_foreign(self.command, config, self.typed)
                ranks.name_folder(str(folder.path))
                if is_first and not in_sweep:
                    choices = name_choices(hydra_config.runtime.choices, began_in)
                    announce_start(self.command, config, choices, folder.path)
                self._check(config)
                return sweeps.finish_run(config, folder, overrides, do_job) if in_sweep else do_job()

    def _check(self, config: DictConfig) -> None:
        """Check the values of a configuration, and write each as the job takes it: 1e3 steps as 1000, for example."""
        with quick_imports():
            from dml.run.checks import check, check_search  # late: it imports torch

            quiet()  # Lightning sets its own level when it is imported
            check(self.command, config)  # it imports the targets
        if self.command == "train" and sweeps.is_search():
            with one_line_errors(self.is_debugged):  # it ends the search: no other run would fare better
                check_search(config)

    def _launch(self, trainer: DictConfig, folder: RunFolder) -> NoReturn:
        """Run the command in a process for each device, and exit as they do."""
        with _hold(folder, wait=False):  # it removes the folder after an error
            if asks_for_sweep(self.typed):
                raise InputError(
                    f"trainer.devices={trainer.devices}: a sweep of {self.command} takes trainer.devices=1"
                )
            if (trainer.get("num_nodes") or 1) > 1:
                raise InputError(
                    f"trainer.num_nodes={trainer.num_nodes}: torchrun or srun starts the processes on each machine; "
                    "see docs/training.md"
                )
        command = [*processes.python_command(self.command), *self.typed, f"hydra.run.dir={quote(folder.path)}"]
        if (code := ranks.launch(command, ranks.count_processes(trainer))) == 2:
            remove_unused_folder(folder, PREPARED)
        sys.exit(code)


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
            removable = PREPARED if not wait and is_users else ()
            remove_unused_folder(folder, removable)
            raise


@contextmanager
def _removing_unused_folders() -> Iterator[None]:
    """Remove the folders of a command that fails before it has written anything, as a sweep before its first run."""
    try:
        yield
    except BaseException:
        remove_unused_folders()
        raise


def _hint(command: str, folder: RunFolder) -> str:
    """Return how the work goes on that a signal has stopped."""
    if command == "train" and folder.last_checkpoint.exists():
        return f"{printable(shlex.quote(f'resume={folder.path}'))} goes on"
    return "" if command == "evaluate" else "the same command starts it again"


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable of the environment for a while; None takes it out."""
    before = os.environ.pop(name, None)
    try:
        if value is not None:
            os.environ[name] = value
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _offer_stored(command: str, typed: Sequence[str]) -> tuple[str, list[str], StoredRun | None]:
    """Let Hydra compose the values of the run that ``resume=`` or ``checkpoint=`` names.

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
        defaults = [word for word in ("transform=imagenet", *list_network_overrides(name)) if key_of(word) not in keys]
        return command, put_options_first([*defaults, *words]), None
    if checkpoint:
        stored = read_checkpoint_run(checkpoint)
        return offer(command, stored, words), words, stored
    return command, words, None


def announce_start(command: str, config: DictConfig, choices: Mapping[str, Any], folder: Path) -> None:
    """Print one line about the run that begins: model, loss, data set and folder."""
    root = OmegaConf.select(config, "dataset.root")
    dataset = _name_choice("dataset", config, choices)
    data = dataset if root is None else f"{dataset} ({root})"
    if command == "train":
        model, loss = (_name_choice(group, config, choices) for group in ("model", "loss"))
        summary = f"{model} with loss {loss} on {data}"
    else:
        summary = f"{config.get('checkpoint')} on {data}"
    console.print(f"[bold]{command:9}[/]{in_markup(summary)}; results in {in_markup(folder)}")


def _name_choice(group: str, config: DictConfig, choices: Mapping[str, Any]) -> str:
    """Return a group's choice or, where the command line replaced it by a class of the user's, that class's name."""
    return str(choices.get(group) or OmegaConf.select(config, f"{group}._target_"))


def sweep_hint() -> str:
    """Return how a sweep goes on that a signal has stopped."""
    return "the same command goes on with the sweep"


@contextmanager
def stopping_workers(arguments: Sequence[str]) -> Iterator[None]:
    """At a signal, wait for the workers that joblib has started for a sweep: each stops its run after a step."""
    is_sweep = asks_for_sweep(arguments)
    if is_sweep:
        signals.state.hint = sweep_hint
    if is_sweep and {"launcher=joblib", "hydra/launcher=joblib"} & set(arguments):
        notice = "stopping the runs under way after their steps"
        with _environment(signals.SILENT, "1"), signals.deferring(notice, _stop_workers):
            yield
    else:
        yield


def _stop_workers() -> None:
    logging.disable()  # Optuna's sweeper would announce that the runs which were stopped have no result
    processes.stop_processes()


def run_in_worker(run: Callable[[], Any]) -> Any:
    """Do a run in a worker of joblib, unless the sweep is stopping; the process that waits for it tells the user."""
    signals.handle_signals()
    signals.state.notice = "stopping"  # for good: joblib kills the other workers if one ends
    try:
        signals.check()
        return run()
    except signals.Stopped:
        return None
