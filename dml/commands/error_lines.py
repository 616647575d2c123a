"""What the user got wrong is one line and exit code 2, a signal one line and its code; a bug keeps its trace."""

import errno
import os
import re
import select
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
from yaml import YAMLError

from dml.commands.arguments import OTHER_NAMES
from dml.run.config_folders import CONF, GROUPS
from dml.runtime import processes, signals
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError, suggest
from dml.runtime.files import DISK_ERRORS
from dml.runtime.text import console, printable
from dml.training.trainer_arguments import explain_refusal

STDOUT = 1
"""The file descriptor of a process's output."""
CLOSED_PIPE_CODE = 128 + getattr(signal, "SIGPIPE", 13)
"""The exit code that a shell shows for a program which SIGPIPE has ended."""
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (is killed by signal: [^.]*|exited unexpectedly)"
)
FEWER_WORKERS = "a smaller data.num_workers takes less memory"
OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory")
"""What PyTorch's errors say on a GPU and on a CPU."""
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Errors that are a path's only if they name one: sockets and signals have them, too."""


@contextmanager
def one_line_errors(debug: bool = False, *, raises: bool = False) -> Iterator[None]:
    """End with one line on stderr and exit code 2 at a user's error, unless ``debug`` or ``raises``.

    A deferred signal ends it with a line, too, and exit code 128 + the signal. Of several processes that train together
    one prints the line for all.
    """
    try:
        yield
    except signals.Stopped:
        _end_by_signal()
    except Exception as error:
        line = explain(error)
        if line is None and signals.is_requested():
            _end_by_signal()  # or a process that was waited for has ended as well
        code, text = 2, f"error: {line}\n"
        if isinstance(error, BrokenPipeError) and hasattr(select, "poll") and _is_output_closed():  # no poll on Windows
            code, text = CLOSED_PIPE_CODE, ""
        elif debug or raises or line is None:
            code, text = 1, format_exc()
        if processes.is_joined():
            processes.fail(code, text, is_explained=line is not None or not text)
        if code == 1:
            raise
        sys.stderr.write(text)
        console.write_log(text, markup=False, end="")
        sys.exit(code)


def _is_output_closed() -> bool:
    """Return whether this process's output is a pipe whose reader has ended; what it hasn't read is dropped then."""
    poll = select.poll()
    poll.register(STDOUT, 0)
    if is_closed := any(event & select.POLLERR for _, event in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python writes the rest when it exits
    return is_closed


def _end_by_signal() -> NoReturn:
    console.write_log(signals.format_line(), markup=False, end="")
    sys.exit(signals.report())


@contextmanager
def told_errors(folder: Path, debug: bool) -> Iterator[None]:
    """Print at once that a run of a sweep failed; Hydra lets the others run, and then raises the first error."""
    try:
        yield
    except Exception as error:
        line = explain(error)
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


def explain(error: BaseException) -> str | None:
    """Return the one line that tells a user what is wrong and what would be right; None for a bug.

    The type of the error decides, or that of an error which it was raised from: libraries wrap some in their own.
    """
    line: str | None = None
    cause: BaseException | None = error
    while line is None and cause is not None:
        line = _join_lines(cause) if isinstance(cause, InputError) else _explain_machine(cause)
        # OmegaConf drops the cause of what a resolver raised
        cause = cause.__cause__ or (cause.__context__ if isinstance(cause, OmegaConfBaseException) else None)
    line = line or _explain_hydra(error)
    return None if line is None else printable(line)  # names out of files and arguments are in it


def _join_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught "):  # a loader's worker hands its error over as a trace
        return lines[-1].partition(": ")[2]
    return " ".join(lines)


def _explain_machine(error: BaseException) -> str | None:
    """Return the line about a disk that refuses a file, short memory, or another process that died."""
    text, rest = str(error), signals.describe_rest()
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        if error.filename is None and error.errno in PATH_ERRORS:
            return None
        name = "a file" if error.filename is None else os.fsdecode(error.filename)
        return f"{name}: {os.strerror(error.errno)}; {DISK_ERRORS[error.errno]}{rest}"
    if isinstance(error, RuntimeError) and (lost := LOST_WORKER.search(text)):
        memory = "shared memory (/dev/shm)" if "shared memory" in text else "memory"
        return f"process {lost[1]}, which loads images, {lost[2]}: most often {memory} is short; {FEWER_WORKERS}{rest}"
    if isinstance(error, ConnectionResetError):
        return f"{text}: a process at the other end of a connection has died; if it loads images, {FEWER_WORKERS}{rest}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(text)):
        return f"{_join_lines(error).partition('. ')[0] or 'out of memory'}; smaller batches take less{rest}"
    return None


def _explain_hydra(error: BaseException) -> str | None:
    """Return the line about what Hydra, OmegaConf, YAML or Optuna refuse."""
    if isinstance(error, InstantiationException):
        return _explain_target(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_choice(error.missing_cfg_file, list(error.options or ()))
    if isinstance(error, OverrideParseException):
        example = "a text with spaces or brackets takes two pairs of quotes, such as 'dataset.root=\"my photos (1)\"'"
        is_pair = "=" in error.override
        reason = f"Hydra can't read this value; {example}" if is_pair else "no KEY=VALUE, such as dataset.root=photos"
        return f"{error.override}: {reason}"
    if isinstance(error, YAMLError):
        return _join_lines(error)
    if isinstance(error, MissingMandatoryValue | InterpolationToMissingValueError):
        return f"{error.full_key}: no value; give {error.full_key}=..."
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _explain_key(error)
    if str(error).startswith("No trials are completed") and not signals.is_requested():
        return "sweep=optuna: no run has finished; the lines above say why"
    return str(error) if str(error).startswith("Only one of --run, --multirun") else None


def _explain_choice(place: str, options: list[str]) -> str:
    """Return the line about a choice that doesn't exist: what installs it, timm's model of its name, or the nearest."""
    group, _, name = place.rpartition("/")
    dml_group, choice = {"hydra/sweeper": "sweep", "hydra/launcher": "launcher"}.get(group), name.partition("_")[0]
    if dml_group and (CONF / dml_group / f"{choice}.yaml").exists():
        return f"{dml_group}={choice}: not installed; pip install 'dml-retrieval[{choice}]'"
    remedy = ""
    if group == "model":
        from dml.models.networks import describe_timm_model  # late: it imports torch

        remedy = describe_timm_model(name)
    return f"{group}={name}: no such choice{remedy or suggest(name, options)}"


def _explain_target(error: InstantiationException) -> str | None:
    """Return the line about an object that can't be made of its arguments; None if it failed for another reason."""
    cause, key = error.__cause__, str(error).rpartition("full_key: ")[2]
    if isinstance(cause, InstantiationException):
        return _explain_target(cause)
    if cause is None:  # the target is no function or class
        return _join_lines(error)
    is_refusal = isinstance(cause, ValueError | TypeError | ImportError | AttributeError)
    if is_refusal or type(cause).__name__ == "MisconfigurationException":  # Lightning's, whose import takes a second
        return f"{key}: {_join_lines(cause)}; debug=true shows where"
    return None


def _explain_key(error: HydraException | OmegaConfBaseException) -> str:
    """Return the line about a key that doesn't exist, with the keys that may be meant, or else the error's own."""
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    parent, key = getattr(cause, "parent_node", None), str(getattr(cause, "key", ""))
    if parent is None or not OmegaConf.is_dict(parent):
        return _join_lines(error)
    path = parent._get_full_key(None)
    if path == "trainer" and (line := explain_refusal(key)):
        return line
    plain: Any = OmegaConf.to_container(parent._get_root(), resolve=False)
    paths = [path for path in flat(plain) if path.rpartition(".")[2] == key and not path.startswith("hydra.")]
    if meant := OTHER_NAMES.get(key) or " or ".join(sorted(paths, key=lambda path: path.count("."))[:3]):
        return f"{cause.full_key}: no such key; is it {meant}?"
    beside = {str(name) for name in parent} | (set() if path else GROUPS)
    return f"{cause.full_key}: no such key{suggest(key, beside)}"
