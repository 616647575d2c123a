"""Failures that are the machine's, not the code's: a disk that refuses a file, a process that was killed."""

import errno
import os
import re
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from dml.ops.errors import InputError
from dml.ops.filesystem.files import DISK_ERRORS
from dml.runtime import signals

SHORT_MEMORY = "most often memory is short, and a smaller data.num_workers takes less"
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (is killed by signal: [^.]*|exited unexpectedly)"
)
KERNEL_FOLDERS = (Path("/proc"), Path("/sys"))
"""Folders in which the kernel shows its state, and no file can be made."""
PATH_ERRORS = (errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
"""Errors that are a path's only if they name one: sockets and signals have them, too."""


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
