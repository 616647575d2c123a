"""What the user got wrong is one line and exit code 2, a signal one line and its code; a bug keeps its trace."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exc
from typing import Any, NoReturn

from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from dml.commands.failures.closed_output import CODE, end_silently, is_output_closed
from dml.commands.failures.faults import explain_fault
from dml.commands.failures.refusals import CALLED_TARGET, is_refusal
from dml.commands.failures.remedies import explain_grammar, explain_missing, suggest_keys
from dml.ops.errors import InputError, suggest
from dml.ops.escaping import printable
from dml.run.config_folders import CONF
from dml.runtime import ranks, signals
from dml.training.trainer_arguments import explain_refusal


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """End with one line on stderr and exit code 2 at a user's error, unless ``debug``; a bug keeps its trace.

    A signal ends it with a line, too, and exit code 128 + the signal. Of several processes that train together one
    prints the line for all.
    """
    signals.start_raising()
    try:
        yield
    except signals.Stopped:
        _end_by_signal(debug)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_output_closed():
            if ranks.is_joined():
                ranks.fail(CODE, "")
            end_silently()
        line = _explained(error)
        if line is None and signals.is_requested():
            # a process that was waited for has ended as well, or elastic ends this one because another has failed
            signals.state.is_silent |= ranks.is_joined() and signals.state.signum == signal.SIGTERM
            _end_by_signal(debug)
        if debug or line is None:
            if ranks.is_joined():
                ranks.fail(1, format_exc(), is_explained=line is not None)
            raise
        if ranks.is_joined():
            ranks.fail(2, f"error: {line}\n")
        sys.stderr.write(f"error: {line}\n")
        sys.exit(2)


def _end_by_signal(debug: bool) -> NoReturn:
    if debug:
        sys.stderr.write(format_exc())
    sys.exit(signals.report())


@contextmanager
def told_errors(folder: Path, debug: bool) -> Iterator[None]:
    """Print at once that a run of a sweep failed; Hydra lets the others run, and then raises the first error."""
    try:
        yield
    except Exception as error:
        line = _explained(error)
        if line is None:
            signals.check()
        sys.stderr.write(f"failed: {printable(folder)}: {line or printable(repr(error))}\n")
        if debug or line is None:
            raise
        raise InputError(f"{folder}: {line}") from error


def print_line(line: str) -> None:
    """Print a line at once, also into a pipe or a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _explained(error: BaseException) -> str | None:
    """Return the line as a terminal may show it: names out of files and arguments are in it.

    It is None, as for a bug, after the exception of a signal: the error is one of a library's cleanup, and hides it.
    """
    line = None if signals.state.was_raised else explain(error)
    return None if line is None else printable(line)


def explain(error: BaseException) -> str | None:
    """Return the one line that tells a user what is wrong and what would be right; None for a bug."""
    if isinstance(error, InstantiationException):
        return _explain_instantiation(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        if extra := _extra(group, name):
            return f"{extra}: not installed; pip install 'dml[{extra.partition('=')[2]}]'"
        return f"{group}={name}: no such choice{suggest(name, list(error.options or ()))}"
    if isinstance(error, OverrideParseException):
        return explain_grammar(error.override, error.message)
    if isinstance(error, YAMLError):
        return _explain_yaml(error)
    if isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
        return explain_missing(str(error.full_key), str(error))
    if isinstance(error, HydraException | OmegaConfBaseException):
        return explain_fault(error) or _explain_key(error) or _first_lines(error)
    if isinstance(error, InputError):
        return _first_lines(error)
    if isinstance(error, ValueError) and str(error).startswith("No trials are completed"):
        is_stopped = signals.is_requested()  # then that is why, and no mistake of the user's
        return None if is_stopped else "sweep=optuna: no run has finished; the lines above say why"
    return explain_fault(error)


def _explain_yaml(error: YAMLError) -> str:
    """Return the line about a YAML file that can't be read: the file, the line and the column, counted from 1."""
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    if mark is None:
        return " ".join(str(error).split())
    return f"{mark.name}:{mark.line + 1}:{mark.column + 1}: {error.problem or error.context}"


def is_users_mistake(error: BaseException) -> bool:
    """Return whether the command line or the data are wrong; a disk, a killed process or a bug is no such mistake."""
    if isinstance(error, InputError):
        return True
    is_hydras = isinstance(error, HydraException | OmegaConfBaseException | InstantiationException)
    return is_hydras and explain(error) is not None


def _extra(group: str, name: str) -> str | None:
    """Return the choice, such as sweep=optuna, of a plugin of Hydra that is missing, such as hydra/sweeper=optuna."""
    dml_group, choice = {"hydra/sweeper": "sweep", "hydra/launcher": "launcher"}.get(group), name.partition("_")[0]
    return f"{dml_group}={choice}" if dml_group and (CONF / dml_group / f"{choice}.yaml").exists() else None


def _explain_key(error: HydraException | OmegaConfBaseException) -> str | None:
    """Return the line about a key that doesn't exist, with the keys that may be meant."""
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    parent, key = getattr(cause, "parent_node", None), str(getattr(cause, "key", ""))
    if parent is None or not OmegaConf.is_dict(parent):
        return None
    path = parent._get_full_key(None)
    if path == "trainer" and (line := explain_refusal(key)):
        return line
    beside = {str(name) for name in parent if not str(name).startswith("_")}
    if not path:
        beside |= {path.name for path in CONF.iterdir() if path.is_dir()}
    if key in beside:  # a group that ~ has taken out, or one that is no part of the configuration
        return f"{key}: the configuration has no {key}, so nothing in it can be set; {key}=... chooses one"
    return f"{cause.full_key}: no such key{suggest_keys(key, beside, parent._get_root())}"


def _explain_instantiation(error: InstantiationException) -> str | None:
    """Return the line about an object that refused its arguments; None if it failed for another reason."""
    cause = error.__cause__
    if isinstance(cause, InputError):
        return _first_lines(cause)
    head, _, key = str(error).rpartition("full_key: ")
    if isinstance(cause, TypeError) and "argument" in str(cause):
        return f"{key}: {cause}"
    if isinstance(cause, AttributeError) and "before Module.__init__() call" in str(cause):
        called = CALLED_TARGET.search(head)
        return f"{key}: {called[1] if called else 'its class'}.__init__ has to begin with super().__init__()"
    if head.startswith("Error locating target"):
        return f"{key}._target_: {' '.join(str(cause).split())}"
    if isinstance(cause, ModuleNotFoundError):  # such as the library of trainer.precision=transformer-engine
        return f"{key if head else 'not installed'}: {' '.join(str(cause).split())}"
    if cause is not None and (called := CALLED_TARGET.search(head)) and is_refusal(cause, called[1]):
        return f"{key}: {called[1]}: {' '.join(str(cause).split())}"
    return None


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught "):  # a loader's worker hands its error over as a trace
        return lines[-1].partition(": ")[2]
    return " ".join(lines)
