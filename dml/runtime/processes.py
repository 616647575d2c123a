"""The processes that a command starts, and settings of the whole process that several threads change for a while."""

import atexit
import ctypes
import multiprocessing.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dml.runtime import signals

if TYPE_CHECKING:
    import torch

PACKAGE = Path(__file__).resolve().parents[1]

IS_INSTALLED = (PACKAGE / "conf").is_dir()
"""Whether the package was built into a wheel, which holds its configurations (setup.py)."""

# parameters of glibc's mallopt (malloc.h), and the largest number that it takes
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST_INT = 2**31 - 1

_started: list["subprocess.Popen[Any]"] = []


def python_command(command: str) -> list[str]:
    """Return ``python -m dml COMMAND``, which works in every process that can import the package, in any folder."""
    return [sys.executable, "-m", "dml", command]


def python_environment(**variables: str) -> dict[str, str]:
    """Return the environment in which `python_command` finds the package: the present one, and more variables.

    A checkout need not be installed: ``python checkout/train.py`` finds it beside the script.
    """
    environment = os.environ | variables
    if not IS_INSTALLED:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE.parent), environment.get("PYTHONPATH")]))
    return environment


@contextmanager
def blocking_signals() -> Iterator[None]:
    """Let a signal to a process that is started in the ``with`` body wait until it calls `signals.handle_signals`."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals.list_handled())  # which the process inherits
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def start_process(command: Sequence[str], **settings: Any) -> "subprocess.Popen[Any]":
    """Start a program of dml's, with the arguments of `subprocess.Popen`; `stop_processes` stops it."""
    with blocking_signals():
        program = subprocess.Popen(command, **settings)  # noqa: S603
    _started.append(program)
    if signals.state.signum is not None:  # it came too early to be passed on
        program.send_signal(signals.state.signum)
    return program


def stop_processes() -> None:
    """Pass the signal on to the programs that this process has started, and SIGTERM to its workers."""
    for program in _started:
        program.send_signal(signals.state.signum or signal.SIGTERM)
    for child in multiprocessing.active_children():
        child.terminate()


def end_with(parent: int) -> None:
    """End this process as soon as its parent, which has this id, has ended: a killed one can't end it."""

    def wait() -> None:
        while os.getppid() == parent:
            sleep(1)
        os._exit(128 + signal.SIGKILL)

    Thread(target=wait, daemon=True).start()


def follow_parent(_worker: int = 0) -> None:
    """Let this worker end with its parent alone, which receives Ctrl-C and SIGTERM too, and ends the worker."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    end_with(os.getppid())


def _end_workers() -> None:
    """End the workers that are left at the exit: the standard library sends them SIGTERM, and waits for ever."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


atexit.register(_end_workers)  # runs before the standard library's, which was registered before

T = TypeVar("T")


class SharedSetting(Generic[T]):
    """A setting of the process that threads change while they need another value, and its former value afterwards.

    A thread that restored the value which it had read could restore that of another thread, and leave it for good.
    ``choose`` takes the former value and those that threads need now, and returns the one that suits all.
    """

    def __init__(self, read: Callable[[], T], write: Callable[[T], None], choose: Callable[[Sequence[T]], T]) -> None:
        self.read, self.write, self.choose = read, write, choose
        self._lock = Lock()
        self._values: list[T] = []

    @contextmanager
    def hold(self, value: T) -> Iterator[None]:
        """Let the setting suit a value in the body of the ``with`` statement."""
        with self._lock:
            if len(self._values) < 2:
                self._values = [self.read()]
            self._values.append(value)
            self.write(self.choose(self._values))
        try:
            yield
        finally:
            with self._lock:
                del self._values[self._values.index(value, 1)]
                self.write(self.choose(self._values))


def keep_freed_memory(device: "torch.device") -> bool:
    """Keep large blocks that are freed, so that a network on a CPU finds the memory for its next batch ready.

    The activations of a batch on a CPU are blocks of many megabytes. glibc maps each of them anew and unmaps it when it
    is freed, so that every batch faults in hundreds of thousands of pages, which the system fills with zeros. That took
    up to a fifth of the time of a training step, and two fifths of the time of embedding photographs. From then on the
    process keeps the largest memory that it once had, so nothing calls this but commands, which end with their work.
    Returns whether freed memory is kept from now on; only glibc has such a setting.
    """
    if device.type != "cpu" or sys.platform == "win32":  # where ctypes.CDLL(None) is an error
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST_INT))
