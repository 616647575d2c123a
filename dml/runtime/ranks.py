"""The processes of a job that train together, one a device: rank 0 names the run folder, and one reports for all.

The user, torchrun or srun starts them, or `launch` by torch elastic, which ends all when one has failed.
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from threading import Thread
from time import monotonic, sleep
from typing import Any, NoReturn

from dml.runtime import signals
from dml.runtime.processes import python_environment

LAUNCHER = "DML_LAUNCHER"
"""The environment variable with the id of the process that called `launch`."""
FOLDER = "dml/folder"
"""The key under which rank 0 stores the path of the run folder."""
FOLDER_WITHIN = 120.0
"""Seconds within which rank 0 has to store it."""
REPORTED = "dml/reported"
"""The key under which the processes count their reports of an error."""
REPORTED_WITHIN = 3.0
"""Seconds for which a process leaves it to the others to report an error that all of them may have."""
STOPPED_WITHIN = 60
"""Seconds that the processes have, after a signal, to finish the step after which they stop."""
ENDED_WITHIN = 20.0
"""Seconds that a process has to end after its launcher; then it ends at once."""

_store: Any = None  # it lives in rank 0 under srun, so it is held until the end
_rank = 0


def count_processes(trainer: Mapping[str, Any]) -> int:
    """Return the number of processes on this machine that a training takes, one for each device."""
    devices = trainer.get("devices")
    if devices is None or str(devices) in ("auto", "-1"):
        import torch

        has_gpus = trainer.get("accelerator") in ("auto", "gpu", "cuda") and torch.cuda.is_available()
        return torch.cuda.device_count() if has_gpus else 1
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
    """Run a program in several processes on this machine, and wait for their end -> exit code.

    If one fails, the others are ended, and the exit code is that of the first. SIGINT and SIGTERM are passed on. The
    variables are added to the environment of the processes.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logger = logging.getLogger("torch.distributed.elastic")
    logger.handlers, logger.propagate = [logging.NullHandler()], False  # the processes have told the user
    handled = ",".join(signum.name for signum in signals.list_handled())
    newer_options: dict[str, Any] = {"signals_to_handle": handled, "shutdown_timeout": STOPPED_WITHIN}
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=f"dml-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        **{name: value for name, value in newer_options.items() if hasattr(LaunchConfig, name)},
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    before = dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))
    os.environ.update(python_environment(**variables, **{LAUNCHER: str(os.getpid())}))
    try:
        program, *arguments = command
        # elastic takes each argument for a template
        elastic_launch(config, program)(*(argument.replace("$", "$$") for argument in arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        _report_killed(rank, count, -failure.exitcode)
        return 128 - failure.exitcode
    except SignalException as error:
        signals.request(error.sigval)
        return 128 + error.sigval
    finally:
        signals.handle_again()
        os.environ.clear()
        os.environ.update(before)
    return 0


def join(rank: int, world_size: int) -> None:
    """Connect this process to the others of its job, at MASTER_ADDR and MASTER_PORT."""
    global _store, _rank
    from torch.distributed.rendezvous import rendezvous

    if launcher := os.environ.get(LAUNCHER):
        Thread(target=_end_with_launcher, args=(int(launcher),), daemon=True).start()
    _rank = rank
    signals.state.is_silent |= rank > 0
    _store, _, _ = next(rendezvous("env://", rank, world_size))


def is_first() -> bool:
    """Return whether this process is rank 0 of its job, or alone."""
    return _rank == 0


def name_folder(folder: str) -> None:
    """Tell the folder of the run to the other processes, if there are any."""
    if _store is not None and is_first():
        _store.set(FOLDER, folder)


def wait_for_folder() -> str | None:
    """Return the folder that rank 0 names; None if it names none."""
    try:
        return str(_store.get(FOLDER).decode()) if _wait_for(FOLDER, FOLDER_WITHIN) else None
    except RuntimeError:  # rank 0 had the store, and has ended
        return None


def is_joined() -> bool:
    """Return whether this process works with others of its job."""
    return _store is not None


def fail(code: int, text: str, *, is_explained: bool = True) -> NoReturn:
    """End this process at once, whatever the others of its job wait for; one of them tells the user.

    Args:
        code: exit code of this process.
        text: lines about the error, which all processes may have.
        is_explained: whether the error is the user's. Any other may follow from the end of another process; then the
            launcher ends rank 0 as well before it tells anything.
    """
    signals.state.is_silent = True
    try:
        _wait_for(REPORTED, REPORTED_WITHIN if _rank else 1.0 if not is_explained else 0.0)
        if _store.add(REPORTED, 1) == 1:
            sys.stderr.write(text)
    except RuntimeError:  # the process that had the store has ended
        pass
    signals.exit_at_once(code)


def _end_with_launcher(launcher: int) -> None:
    while os.getppid() == launcher:
        sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(ENDED_WITHIN)
    signals.end_at_once()


def _wait_for(key: str, seconds: float) -> bool:
    """Wait until a process has stored something under a key -> whether one has done so in time."""
    deadline = monotonic() + seconds
    while not (is_stored := _store.check([key])) and monotonic() < deadline:
        sleep(0.1)
    return bool(is_stored)


def _report_killed(rank: int, count: int, signum: int) -> None:
    hint = signals.state.hint()
    rest = f"; what was saved is kept, and {hint}" if hint else ""
    name = signal.Signals(signum).name
    reason = ": most often memory is short" if signum == signal.SIGKILL else ""
    sys.stderr.write(f"error: process {rank} of {count} was killed by {name}{reason}{rest}\n")
