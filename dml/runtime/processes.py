"""The processes of a command: programs and workers that it starts, and those that train together, one a device.

`launch` starts these itself: torch's ``elastic_launch`` replaces the handlers of signals, and loses those that come
while the Python of a process starts. The user, torchrun or srun may start them, too. Rank 0 names the run folder and
tells the user what all have to tell.
"""

import atexit
import ctypes
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn

from dml.runtime import signals

if TYPE_CHECKING:
    import torch

PACKAGE = Path(__file__).resolve().parents[1]

IS_INSTALLED = (PACKAGE / "conf").is_dir()
"""Whether the package was built into a wheel, which holds its configurations (setup.py)."""

LAUNCHER = "DML_LAUNCHER"
"""The environment variable with the id of the process that called `launch`."""
FOLDER = "dml/folder"
"""The key under which rank 0 stores the path of the run folder."""
TOLD_WITHIN = 3.0
"""Seconds for which a process leaves it to another to tell of an error, after which a launcher ends the rest."""
STOPPED_WITHIN = 20.0
"""Seconds that processes have to end after a signal has ended the first of them."""
# parameters of glibc's mallopt (malloc.h), and the largest number that it takes
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST_INT = 2**31 - 1

_started: list["subprocess.Popen[Any]"] = []
_store: Any = None  # it lives in rank 0, so it is held until the end
_rank: int | None = None  # None for a process alone


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


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def uses_cuda(accelerator: Any) -> bool:
    """Return whether ``trainer.accelerator`` is, or will turn out to be, an NVIDIA GPU."""
    import torch

    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def count_processes(trainer: Mapping[str, Any]) -> int:
    """Return the number of processes on this machine that a training takes, one for each device."""
    devices = trainer.get("devices")
    if devices is None or str(devices) in ("auto", "-1"):
        import torch

        return torch.cuda.device_count() if uses_cuda(trainer.get("accelerator")) else 1
    if isinstance(devices, str):
        return int(devices) if devices.isdecimal() else len([name for name in devices.split(",") if name.strip()])
    return devices if isinstance(devices, int) else len(devices)


def is_launched(trainer: Mapping[str, Any]) -> bool:
    """Return whether a launcher has started this process as one of a job, or the configuration implies it."""
    strategy = trainer.get("strategy")
    has_environment = isinstance(strategy, Mapping) and "cluster_environment" in strategy
    is_srun = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1
    return has_environment or is_srun or "TORCHELASTIC_RUN_ID" in os.environ or "LOCAL_RANK" in os.environ


def launch(command: Sequence[str], count: int, **variables: str) -> int:
    """Run a dml program in several processes on this machine, in the environment that torchrun makes -> exit code.

    When one has failed, the others are ended, and its exit code is returned. Signals are passed on: `signals.Stopped`
    is raised if one has come, to this process or to one of them. The variables are added to the environment.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {"TORCHELASTIC_RUN_ID": "dml", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), LAUNCHER: str(os.getpid())}
    environment = {"OMP_NUM_THREADS": str(max(1, count_cores() // count))} | python_environment(**variables, **job)
    first_tells = signals.SILENT not in variables
    with signals.deferring("stopping after this step", stop_processes):
        was_silent, signals.state.is_silent = signals.state.is_silent, signals.state.is_silent or first_tells
        numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        processes = [start_process(command, env=environment | number) for number in numbers]
        failed_rank, code = _wait(processes)
        if code - 128 in signals.list_handled():
            signals.request(code - 128)
            was_silent |= first_tells and processes[0].returncode == code
        signals.state.is_silent = was_silent
    if code >= 0:
        return code
    reason = ": most often memory is short" if code == -signal.SIGKILL else ""
    name, rest = signal.Signals(-code).name, signals.describe_rest()
    sys.stderr.write(f"error: process {failed_rank} of {count} was killed by {name}{reason}{rest}\n")
    return 128 - code


def _wait(processes: Sequence["subprocess.Popen[Any]"]) -> tuple[int, int]:
    """Wait for processes, and end those that one has left behind which failed -> its rank and exit code, or (0, 0)."""
    failed_rank, failed_code, deadline = 0, 0, float("inf")
    while True:
        codes = [process.poll() for process in processes]
        if not failed_code and any(codes):
            failed_rank, failed_code = next((rank, code) for rank, code in enumerate(codes) if code)
            deadline = monotonic() + (STOPPED_WITHIN if failed_code - 128 in signals.list_handled() else 0)
        if None not in codes:
            return failed_rank, failed_code
        if monotonic() >= deadline:
            for process in processes:
                process.kill()
        sleep(0.1)


def join(rank: int, world_size: int) -> None:
    """Make this process one of a job; those that `launch` hasn't started meet at MASTER_ADDR and MASTER_PORT."""
    global _store, _rank
    _rank = rank
    signals.state.is_silent |= rank > 0
    if launcher := os.environ.get(LAUNCHER):
        end_with(int(launcher))
    else:
        from torch.distributed.rendezvous import rendezvous

        _store, _, _ = next(rendezvous("env://", rank, world_size))


def is_joined() -> bool:
    """Return whether this process works with others of its job."""
    return _rank is not None


def is_first() -> bool:
    """Return whether this process is rank 0 of its job, or alone."""
    return not _rank


def name_folder(folder: str) -> None:
    """Tell the folder of the run to the other processes, if there are any that wait for it."""
    if _store is not None and is_first():
        _store.set(FOLDER, folder)


def wait_for_folder() -> str:
    """Return the folder that rank 0 names; its end is a RuntimeError here, after it has told why."""
    return str(_store.get(FOLDER).decode())


def fail(code: int, text: str, *, is_explained: bool = True) -> NoReturn:
    """Tell of an error, and end this process at once, whatever the others of its job wait for.

    All processes may have made the user's mistake, so rank 0 tells of it, and the launcher ends the others before they
    do. An error that is no mistake may follow from the end of another process, of which that or the launcher tells.
    """
    signals.state.is_silent = True
    sleep(TOLD_WITHIN * (bool(_rank) + (not is_explained)))
    with suppress(RuntimeError):  # rank 0 had the store, and has told of the error
        if _store is not None:
            _store.check([FOLDER])
        if not (_rank and signals.is_requested()):
            sys.stderr.write(text)
    signals.exit_at_once(code)


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
