"""The command line: Hydra composes, a job runs, what the user got wrong is one line and exit code 2."""

import logging
import os
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
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dml.commands.arguments import (
    asks_for_sweep,
    check_choices,
    check_encoding,
    check_run_folders,
    find_path,
    put_options_first,
    quote_paths,
    replace_latest,
    replace_resize_option,
    split_help,
)
from dml.commands.command_help import format_help
from dml.commands.error_lines import explain, is_users_mistake, one_line_errors, print_line, told_errors
from dml.commands.required_values import check_parts, check_values, select_used_parts
from dml.commands.start import follow, import_from_working_folder, quiet
from dml.commands.sweep_start import check_point, make_composable
from dml.run import building, sweeps
from dml.run.config_folders import (
    CONF,
    list_network_overrides,
    list_overrides,
    pretrained_name,
    quote,
    search_path_overrides,
)
from dml.run.stored import StoredRun, check_foreign, name_choices, offer, read_checkpoint_run, read_stored_run
from dml.run.value_types import check_types
from dml.runtime import processes, ranks, signals
from dml.runtime.configuration import key_of
from dml.runtime.console import console
from dml.runtime.errors import InputError
from dml.runtime.lean_imports import import_lean
from dml.runtime.new_folders import note_new_folder, remove_unused_folder, remove_unused_sweeps
from dml.runtime.paths import expand_home
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


def run_job(command: str, arguments: Sequence[str]) -> None:
    """Run one of `JOBS` with the arguments that follow its name, such as ["loss=rll", "--multirun", "seed=1,2"]."""
    sys.argv[1:] = [command, *arguments]  # Hydra takes them from there
    main(command, is_named=True)


@dataclass
class Outcome:
    """What a command in a Python session leaves behind.

    Args:
        folder: folder of the run.
        error: exception that ended it, which Hydra would print a line of its own about.
    """

    folder: Path | None = None
    error: Exception | None = None


def run_from_python(command: str, words: Sequence[str]) -> Path:
    """Run one of `JOBS` in a Python session -> the folder of its run; what ends the shell's command is raised here.

    Raises:
        InputError: if the words can't be used, or the processes of a training on several devices fail.
    """
    before, outcome = sys.argv, Outcome()
    sys.argv = ["dml", command, *words]
    try:
        main(command, is_named=True, outcome=outcome)
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


def main(command: str, *, is_named: bool = False, outcome: Outcome | None = None) -> None:
    """Run one of `JOBS` with the overrides of the command line.

    A user's error ends with one line on stderr and exit code 2; ``HYDRA_FULL_ERROR=1`` or ``debug=true`` shows
    its trace, as any other exception does.

    At SIGINT or SIGTERM it ends with one line and exit code 128 + the signal; see `dml.runtime.signals`.

    Args:
        command: one of `JOBS`.
        is_named: whether the command line names the command before the overrides, as ``dml train loss=rll`` does.
        outcome: object that gets the folder and the error of the run, for a caller in Python.
    """
    prefix = [command] if is_named else []
    full_error = os.environ.get("HYDRA_FULL_ERROR")
    is_debugged = full_error == "1" or "debug=true" in [argument.lower() for argument in sys.argv]
    # set before torch is loaded: threads that spin while they wait keep the loader's workers, or any other program,
    # from the cores that they in turn wait for; on two busy cores a step then takes ten times as long
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import_lean()
    quiet()  # what is read of a checkpoint imports Lightning before Hydra has called the job
    # Hydra is told to raise: it would print its own shortened trace and exit with 1
    with (
        signals.handling(),
        one_line_errors(is_debugged, raises=outcome is not None),
        _environment("HYDRA_FULL_ERROR", "1"),
    ):
        check_encoding([*sys.argv[1:], os.getcwd()])
        import_from_working_folder()
        words, shows_all = split_help(replace_resize_option(sys.argv[1 + len(prefix) :]))
        typed = put_options_first(words)
        if not {"-h", "--help"}.isdisjoint(typed):
            program = f"dml {command}" if is_named else f"python {command}.py"
            print_line(format_help(command, program, quote_paths(typed), shows_all=shows_all).rstrip())
            return
        check_choices(typed)
        check_run_folders(typed)
        if asks_for_sweep(typed) and (shown := {"--cfg", "-c", "--info", "-i"}.intersection(typed)):
            raise InputError(f"{min(shown)}: shows one configuration, and a sweep has many; leave out --multirun")
        name, words, stored = _offer_stored(command, typed)
        arguments = follow(put_options_first(words))
        sys.argv[1:] = make_composable(arguments)
        task = Task(command, typed, is_debugged, full_error, os.getpid(), stored, outcome)
        if (folder := find_path(arguments, "hydra.run.dir")) and "${" not in str(folder):
            note_new_folder(folder)
        with stopping_workers(arguments), _removing_unused_sweeps():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task.run)()


@dataclass(frozen=True)
class Task:
    """A command that Hydra runs with each configuration that it composes: a sweep has many.

    Args:
        command: one of `JOBS`.
        typed: overrides that the user has typed.
        is_debugged: whether the user asks for the trace of an error.
        full_error: value of HYDRA_FULL_ERROR in the environment; None if it isn't set.
        process: id of the process that the user has started.
        stored: what the run that is resumed or tested stored; None for a new run.
        outcome: object that gets the folder and the error of the run, for a caller in Python; None on the command line.
    """

    command: str
    typed: list[str]
    is_debugged: bool
    full_error: str | None
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
        quiet()  # before FAISS is imported
        import_from_working_folder()  # a launcher may have started this process
        hydra_config = HydraConfig.get()
        folder = RunFolder(hydra_config.runtime.output_dir)
        if self.outcome is not None:
            self.outcome.folder = folder.path
        overrides = list_overrides(hydra_config, config)
        is_test = self.command == "evaluate" and self.stored is not None
        began_in = RunFolder.from_checkpoint(expand_home(config.checkpoint)) if is_test else folder
        if self.stored is not None:
            keys = {key_of(override) for override in overrides}
            overrides = [*(word for word in self.stored.overrides if key_of(word) not in keys), *overrides]
        in_sweep = self.command == "train" and hydra_config.mode == RunMode.MULTIRUN
        signals.state.hint = sweep_hint if in_sweep else partial(_hint, self.command, folder)

        def do_job() -> Any:
            return resolve_name(JOBS[self.command])(config, folder, overrides)

        # user errors end within the job: Hydra would announce its failure first
        errors = (
            told_errors(folder.path, self.is_debugged)
            if in_sweep
            else one_line_errors(self.is_debugged, raises=self.outcome is not None)
        )
        has_folder = self.command not in WITHOUT_RUN_FOLDER
        trainer = OmegaConf.select(config, "trainer") if has_folder and not in_sweep else None
        if trainer and ranks.count_processes(trainer) > 1 and not ranks.is_launched(trainer):
            with errors, _environment("HYDRA_FULL_ERROR", self.full_error):
                self._launch(trainer, folder)
        is_first = has_folder and ranks.is_first()
        # a sweeper may propose the same values twice at a time: the second waits for the first, and is skipped
        lock = _hold(folder, wait=in_sweep) if is_first else nullcontext()
        with errors, lock, _environment("HYDRA_FULL_ERROR", self.full_error):
            if in_sweep:
                check_point(self.typed, [*search_path_overrides(hydra_config), *hydra_config.overrides.task])
            check_parts(self.command, config, hydra_config.runtime)
            check_values(self.command, config)
            ranks.name_folder(str(folder.path))
            if is_first and not in_sweep:
                announce_start(self.command, config, name_choices(hydra_config.runtime.choices, began_in), folder.path)
            with building.trusting(True):  # what is typed, and a file's values after `check_foreign`
                if self.stored is not None:
                    check_foreign(self.command, config, self.typed)
                self._check(config)
                return sweeps.finish_run(config, folder, overrides, do_job) if in_sweep else do_job()

    def _check(self, config: DictConfig) -> None:
        """Check the values of a configuration, and write each as the job takes it: 1e3 steps as 1000, for example."""
        check_types(select_used_parts(self.command, config), config, command=self.command)  # it imports the targets
        from dml.commands.training_checks import check_job  # late: it imports torch
        from dml.run.evaluators import complete_metric_names

        quiet()  # Lightning sets its own level when it is imported
        if self.command == "train":
            complete_metric_names(config)
        check_job(self.command, config)

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
        code = ranks.launch(command, ranks.count_processes(trainer))
        remove_unused_folder(folder, PREPARED if code == 2 else ())
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
            removable = PREPARED if not wait and is_users_mistake(error) else ()
            remove_unused_folder(folder, removable)
            raise


@contextmanager
def _removing_unused_sweeps() -> Iterator[None]:
    """Remove the folder of a sweep that fails before its first run."""
    try:
        yield
    except BaseException:
        remove_unused_sweeps()
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
        summary = f"{config.checkpoint} on {data}"
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
        with _environment(signals.SILENT, "1"), processes.waiting_for_processes(_stop_workers):  # of the workers
            yield
    else:
        yield


def _stop_workers() -> None:
    logging.disable()  # Optuna's sweeper would announce that the runs which were stopped have no result
    processes.stop_processes()


def run_in_worker(run: Callable[[], Any]) -> Any:
    """Do a run in a worker of joblib, unless the sweep is stopping; the process that waits for it tells the user."""
    signals.handle_signals()
    signals.start_raising()
    if signals.is_requested():
        return None
    try:
        return run()
    except signals.Stopped:
        signals.report()
        return None
