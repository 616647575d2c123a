"""What the user got wrong is one line and exit code 2, a signal one line and its code; a bug keeps its trace."""

import dis
import errno
import os
import re
import select
import shutil
import signal
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exc
from typing import Any, NoReturn

from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from dml.commands.remedies import explain_grammar, explain_missing, suggest_keys
from dml.run.config_folders import CONF
from dml.runtime import ranks, signals
from dml.runtime.console import console
from dml.runtime.errors import InputError, suggest
from dml.runtime.files import DISK_ERRORS
from dml.runtime.text import printable
from dml.training.trainer_arguments import explain_refusal

CALLED_TARGET = re.compile(r"Error in call to target '([^']+)'")
"""How Hydra names the class or function that raised an exception."""
RAISE = dis.opmap["RAISE_VARARGS"]
STDOUT = 1
"""The file descriptor of a process's output."""
CLOSED_PIPE_CODE = 128 + getattr(signal, "SIGPIPE", 13)
"""The exit code that a shell shows for a program which SIGPIPE has ended."""
SHORT_MEMORY = "most often memory is short, and a smaller data.num_workers takes less"
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (is killed by signal: [^.]*|exited unexpectedly)"
)
KERNEL_FOLDERS = (Path("/proc"), Path("/sys"))
"""Folders in which the kernel shows its state, and no file can be made."""
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Errors that are a path's only if they name one: sockets and signals have them, too."""


@contextmanager
def one_line_errors(debug: bool = False, *, raises: bool = False) -> Iterator[None]:
    """End with one line on stderr and exit code 2 at a user's error, unless ``debug`` or ``raises``; a bug keeps its
    trace.

    A deferred signal ends it with a line, too, and exit code 128 + the signal. Of several processes that train together
    one prints the line for all.
    """
    try:
        yield
    except signals.Stopped:
        _end_by_signal()
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            if ranks.is_joined():
                ranks.fail(CLOSED_PIPE_CODE, "")
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python writes the rest of its buffer when it exits
            sys.exit(CLOSED_PIPE_CODE)
        line = _explained(error)
        if line is None and signals.is_requested():
            _end_by_signal()  # or a process that was waited for has ended as well
        if debug or raises or line is None:
            if ranks.is_joined():
                ranks.fail(1, format_exc(), is_explained=line is not None)
            raise
        if ranks.is_joined():
            ranks.fail(2, f"error: {line}\n")
        sys.stderr.write(f"error: {line}\n")
        console.write_log(f"error: {line}", markup=False)
        sys.exit(2)


def _end_by_signal() -> NoReturn:
    console.write_log(signals.format_line(), markup=False, end="")
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
    """Return the line as a terminal may show it: names out of files and arguments are in it."""
    line = explain(error)
    return None if line is None else printable(line)


def explain(error: BaseException) -> str | None:
    """Return the one line that tells a user what is wrong and what would be right; None for a bug."""
    if isinstance(error, InstantiationException):
        return _explain_instantiation(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_choice(*str(error.missing_cfg_file).rpartition("/")[::2], error.options or ())
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


def _explain_choice(group: str, name: str, options: Collection[str]) -> str:
    """Return the line about a choice that doesn't exist: what installs it, timm's model of its name, or the nearest."""
    dml_group, choice = {"hydra/sweeper": "sweep", "hydra/launcher": "launcher"}.get(group), name.partition("_")[0]
    if dml_group and (CONF / dml_group / f"{choice}.yaml").exists():
        return f"{dml_group}={choice}: not installed; pip install 'dml-retrieval[{choice}]'"
    remedy = ""
    if group.partition("/")[0] == "model":
        from dml.models.networks import describe_timm_model  # late: it imports torch

        remedy = describe_timm_model(name)
    return f"{group}={name}: no such choice{remedy or suggest(name, list(options))}"


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


def is_refusal(error: BaseException, target: str) -> bool:
    """Return whether a class or function refused its arguments, as opposed to a failure in something that it uses.

    It refuses them if a ``raise`` of its package raised a ValueError. dml's parts raise `InputError` for that, and
    Lightning has an exception for its users' mistakes. ``target`` is the dotted name.
    """
    if type(error).__name__ == "MisconfigurationException":
        return True
    package = target.partition(".")[0]
    if not isinstance(error, ValueError) or isinstance(error, UnicodeError) or package == "dml":
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_code[last.tb_lasti] != RAISE:
        return False
    return str(last.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == package


def _is_output_closed() -> bool:
    """Return whether this process's output is a pipe whose reader has ended."""
    if not hasattr(select, "poll"):  # on Windows
        return False
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def explain_fault(error: BaseException) -> str | None:
    """Return the line about a disk that refuses a file, or a killed process of a loader; None for anything else.

    A user's error that another library has wrapped in its own is told as it is.
    """
    for cause in _causes(error):
        if isinstance(cause, InputError):
            return " ".join(str(cause).split())
        if isinstance(cause, ConnectionError | EOFError) and _is_from_loader(cause):
            return f"a process that loads images died while it sent some: {SHORT_MEMORY}{_describe_rest()}"
        if isinstance(cause, OSError):
            return _explain_disk(cause)
        if isinstance(cause, RuntimeError) and (lost := LOST_WORKER.search(str(cause))):
            line = f"process {lost[1]}, which loads images, {lost[2]}: {SHORT_MEMORY}{_describe_rest()}"
            return line.replace("memory", "shared memory (/dev/shm)", 1) if "shared memory" in str(cause) else line
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, the error that it was raised from, and so on."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        # OmegaConf drops the cause of what a resolver raised
        before = cause.__context__ if isinstance(cause, OmegaConfBaseException) else None
        cause = cause.__cause__ or before


def _is_from_loader(error: BaseException) -> bool:
    """Return whether PyTorch's loader raised the error, and not something else that has connections."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(frame.filename).match("torch/utils/data/dataloader.py") for frame in frames)


def _explain_disk(error: OSError) -> str | None:
    code, path = error.errno, error.filename
    if code == errno.ENOENT and path is not None and (folder := _find_kernel_folder(Path(os.fsdecode(path)))):
        return f"{os.fsdecode(path)}: no file can be made in {folder}; choose another folder"
    if code not in DISK_ERRORS or (code in PATH_ERRORS and path is None):
        return None
    if code == errno.EEXIST and not Path(os.fsdecode(path)).is_file():  # a folder there is nobody's mistake
        return None
    name = "a file" if path is None else os.fsdecode(path)
    room = _describe_room(Path(os.fsdecode(path))) if code == errno.ENOSPC and path is not None else ""
    line = f"{name}: {os.strerror(code)}{room}; {DISK_ERRORS[code]}"
    return line if code in PATH_ERRORS else f"{line}{_describe_rest()}"


def _find_kernel_folder(path: Path) -> Path | None:
    """Return the folder of `KERNEL_FOLDERS` that a path is in, or None; None too if the folder of the path is missing.

    To make a file there is refused by the error of a missing file, which elsewhere is a bug.
    """
    if not path.parent.is_dir():  # such as that of a process that has ended
        return None
    return next((folder for folder in KERNEL_FOLDERS if folder in path.absolute().parents), None)


def _describe_rest() -> str:
    """Return how the command goes on, as after a signal; empty for one that begins anew."""
    hint = signals.state.hint()
    return f"; what was saved is kept, and {hint}" if hint else ""


def _describe_room(path: Path) -> str:
    """Return how much is free in the folder of a file that found no room, such as " (0.3 MB free in /data)".

    It is empty if nothing of the path can be looked at. The partial file, which is deleted by now, took room as well.
    """
    for folder in path.absolute().parents:
        try:
            free = shutil.disk_usage(folder).free
        except OSError:  # the folder was to be made
            continue
        return f" ({free / 1e6:,.1f} MB free in {folder})"
    return ""
