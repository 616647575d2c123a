"""The command line: Hydra composes, a job runs, what the user got wrong is one line and exit code 2."""

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from traceback import format_exc
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dml.ops.errors import InputError
from dml.ops.run_folder import RunFolder
from dml.run import launched, sweeps, trust
from dml.run.arguments import path_given, quote, quote_paths
from dml.run.config_folders import CONF, import_from_working_folder, search_path_overrides
from dml.run.quiet import quiet
from dml.run.stored import key_of, of_checkpoint, of_run
from dml.run.trainer_arguments import refusal
from dml.training import watch

COMMANDS = ("train", "evaluate", "prepare")


def main(command: str, *, is_named: bool = False) -> None:
    """Runs ``train``, ``evaluate`` or ``prepare`` with the overrides of the command line.

    A user's error ends with one line on stderr and exit code 2; ``HYDRA_FULL_ERROR=1`` or ``debug=true`` shows
    its trace, as any other exception does.

    Args:
        command: one of `COMMANDS`.
        is_named: whether the command line names the command before the overrides, as ``dml train loss=rll`` does.
    """
    named = [command] if is_named else []
    asked = os.environ.get("HYDRA_FULL_ERROR")
    debug = asked == "1" or "debug=true" in [argument.lower() for argument in sys.argv]
    # set before torch is loaded: threads that spin while they wait keep the loader's workers, or any other program,
    # from the cores that they in turn wait for; on two busy cores a step then takes ten times as long
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    def job(config: DictConfig) -> Any:
        quiet()  # before FAISS is imported
        import_from_working_folder()  # a launcher may have started this process
        sys.argv[1:] = [*named, *arguments]  # Lightning starts the other processes of a run with it
        hydra_config = HydraConfig.get()
        folder = RunFolder(hydra_config.runtime.output_dir)
        overrides = [*search_path_overrides(hydra_config), *hydra_config.overrides.task]
        launched.lead(folder.path)

        def run() -> Any:
            function = _job(command)
            quiet()  # Lightning sets its own level when it is imported
            trust.check_targets(command, config, given)
            found = function(config, folder, overrides)
            watch.leave()
            return found

        swept = command == "train" and hydra_config.mode == RunMode.MULTIRUN
        # user errors end within the job: Hydra would announce its failure first
        errors = _told_errors(folder.path, debug) if swept else one_line_errors(debug)
        leads = command != "prepare" and not launched.is_follower(hydra_config.overrides.hydra)
        # a sweeper may propose the same values twice at a time: the second waits for the first, and is skipped
        held = folder.hold(wait=swept) if leads else nullcontext()
        with errors, held, _environment("HYDRA_FULL_ERROR", asked):
            return sweeps.one_run(config, folder, overrides, run) if swept else run()

    quiet()  # what is read of a checkpoint imports Lightning before Hydra has called the job
    # Hydra is told to raise: it would print its own shortened trace and exit with 1
    with one_line_errors(debug), _environment("HYDRA_FULL_ERROR", "1"):
        import_from_working_folder()
        given = sys.argv[1 + len(named) :]
        arguments = launched.follow(_with_stored_overrides(given))
        sys.argv[1:] = arguments
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=command)(job)()


def _job(command: str) -> Callable[[DictConfig, RunFolder, list[str]], Any]:
    """The command's function, imported late: --help and --cfg need no torch, preparing no Lightning."""
    if command == "prepare":
        from dml.run.prepare_job import prepare

        return prepare
    if command == "evaluate":
        from dml.run.evaluate_job import evaluate

        return evaluate
    from dml.run.jobs import train

    return train


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Sets a variable of the environment, or takes it out, for a while."""
    before = os.environ.pop(name, None)
    try:
        if value is not None:
            os.environ[name] = value
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Ends with one line on stderr and exit code 2 at a user's error, unless ``debug``; a bug keeps its trace.

    Of several processes that train together one tells it, for all.
    """
    try:
        yield
    except Exception as error:
        line = explain(error)
        if debug or line is None:
            watch.fail(1, format_exc())
            raise
        watch.fail(2, f"error: {line}\n")
        sys.stderr.write(f"error: {line}\n")
        sys.exit(2)


def say(line: str) -> None:
    """Prints a line at once, also into a pipe or a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def _told_errors(folder: Path, debug: bool) -> Iterator[None]:
    """Tells at once that a run of a sweep failed; Hydra lets the others run, and then raises the first error."""
    try:
        yield
    except Exception as error:
        line = explain(error)
        sys.stderr.write(f"failed: {folder}: {line or repr(error)}\n")
        if debug or line is None:
            raise
        raise InputError(f"{folder}: {line}") from error


def _with_stored_overrides(arguments: Sequence[str]) -> list[str]:
    """Puts the overrides of the run named by ``resume=`` or ``checkpoint=`` before those of the command line."""
    arguments = quote_paths(arguments)
    if folder := path_given(arguments, "resume"):
        if {"-m", "--multirun"} & set(arguments):
            raise InputError(f"resume={folder}: goes on with one run, without --multirun")
        return [*_merge(of_run(RunFolder(folder)).overrides, arguments), f"hydra.run.dir={quote(folder)}"]
    if checkpoint := path_given(arguments, "checkpoint"):
        return _merge(of_checkpoint(checkpoint).overrides, arguments)
    return list(arguments)


def _merge(stored: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Stored overrides, those that ``arguments`` give anew aside, then ``arguments``.

    Raises:
        InputError: if a stored one may do harm, and ``arguments`` don't trust the file.
    """
    keys = {key_of(argument) for argument in arguments}
    remaining = [override for override in stored if key_of(override) not in keys]
    trust.check_overrides(remaining, arguments)
    return remaining + list(arguments)


def explain(error: BaseException) -> str | None:
    """The one line that tells a user what is wrong and what would be right; None for a bug."""
    if isinstance(error, InstantiationException):
        return _explain_instantiation(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if extra := _extra(group, name):
            return f"{extra}: not installed; pip install 'dml[{extra.partition('=')[2]}]'"
        return f"{group}={name}: no such choice{nearest(name, list(error.options or ()))}"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _explain_key(error) or _first_lines(error)
    if isinstance(error, InputError):
        return _first_lines(error)
    if isinstance(error, ValueError) and str(error).startswith("No trials are completed"):
        return "sweep=optuna: no run has finished; the lines above say why"
    return None


def _extra(group: str, name: str) -> str | None:
    """The choice, such as sweep=optuna, behind a plugin of Hydra that isn't there, such as hydra/sweeper=optuna."""
    own, choice = {"hydra/sweeper": "sweep", "hydra/launcher": "launcher"}.get(group), name.partition("_")[0]
    return f"{own}={choice}" if own and (CONF / own / f"{choice}.yaml").exists() else None


def _explain_key(error: HydraException | OmegaConfBaseException) -> str | None:
    """For a key that doesn't exist, the nearest of those beside it."""
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    parent, key = getattr(cause, "parent_node", None), str(getattr(cause, "key", ""))
    if parent is None or not OmegaConf.is_dict(parent):
        return None
    if parent._get_full_key(None) == "trainer" and (line := refusal(key)):
        return line
    beside = {str(name) for name in parent if not str(name).startswith("_")}
    if not parent._get_full_key(None):
        beside |= {path.name for path in CONF.iterdir() if path.is_dir()}
    return None if key in beside else f"{cause.full_key}: no such key{nearest(key, beside)}"


def _explain_instantiation(error: InstantiationException) -> str | None:
    """An object that refused its arguments; None if it failed for another reason."""
    cause = error.__cause__
    if isinstance(cause, InputError):
        return _first_lines(cause)
    if isinstance(cause, TypeError) and "argument" in str(cause):
        return f"{str(error).rpartition('full_key: ')[2]}: {cause}"
    return None


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught "):  # a loader's worker hands its error over as a trace
        return lines[-1].partition(": ")[2]
    return " ".join(lines)


def nearest(name: str, options: Collection[str]) -> str:
    """The end of a line about ``name``, which isn't one of the options: those that are most like it."""
    found = get_close_matches(name, sorted(options), n=4, cutoff=0.4) or sorted(options)
    return f"; nearest: {', '.join(found[:12])}" if found else ""
