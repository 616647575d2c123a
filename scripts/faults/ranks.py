"""Rows about training in two processes: signals to one of them, or to the launcher that has started them."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from faults.commands import EndedCommand, RunningCommand, run
from faults.fixtures import Fixtures, two_process_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_done, check_told, find_run_difference
from faults.signals import CODES, check_stopped

ENDS_WITHIN = 30.0
"""Seconds after the signal within which all processes have to end."""
LAUNCHER = "launcher"


def _signal_one(number: int, name: str) -> Callable[[Try], str]:
    """Return a try that sends a signal to the launcher or to a rank while both ranks are training."""

    def make_try(attempt: Try) -> str:
        fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
        running = RunningCommand("train.py", two_process_arguments(fixtures.images, folder), attempt.folder)
        while not (folder / "checkpoints" / "last.ckpt").exists() and not running.has_ended():
            time.sleep(0.02)
        processes = _find_processes(running.process)
        if name not in processes:
            raise FailedError(f"ended before the signal to {name}", running.wait())
        began = time.monotonic()
        os.kill(processes[name], number)
        while (left := [other for other, process in processes.items() if _is_running(process)]) and (
            time.monotonic() - began < ENDS_WITHIN
        ):
            time.sleep(0.02)
        ended = running.wait()
        if left:
            raise FailedError(f"runs {ENDS_WITHIN:.0f} s after the signal: {', '.join(left)}", ended)
        _check_end(ended, number, name)
        again = run("train.py", f"resume={folder}", folder=attempt.folder)
        check_done(again, folder)
        if difference := find_run_difference(fixtures.run_of_two, folder):
            raise FailedError(f"went on, and ended {difference}", again)
        return "stopped, and went on"

    return make_try


def _find_processes(launcher: int) -> dict[str, int]:
    """Return the ids of the launcher, "launcher", and of the processes that it has started, "0" and "1"."""
    processes = {LAUNCHER: launcher}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # the process has just ended
            continue
        if parent == launcher:
            processes |= {
                variable[5:].decode(): int(entry.name) for variable in variables if variable.startswith(b"RANK=")
            }
    return processes


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _check_end(ended: EndedCommand, number: int, name: str) -> None:
    if number != signal.SIGKILL:
        check_stopped(ended, number)
    elif name != LAUNCHER:
        check_told(ended, (CODES[signal.SIGKILL],))
    elif ended.code != CODES[signal.SIGKILL] or "Traceback" in ended.err:
        raise FailedError(f"exit code {ended.code}", ended)


SIGNALS = [
    _signal_one(signal.SIGTERM, LAUNCHER),
    _signal_one(signal.SIGINT, LAUNCHER),
    _signal_one(signal.SIGKILL, LAUNCHER),
    _signal_one(signal.SIGTERM, "0"),
    _signal_one(signal.SIGKILL, "0"),
    _signal_one(signal.SIGTERM, "1"),
    _signal_one(signal.SIGKILL, "1"),
]

FAULTS = [
    Fault(
        "ranks",
        "SIGTERM, Ctrl-C and SIGKILL to the launcher of two processes that train together, to the first, to the second",
        14,
        f"all end within {ENDS_WITHIN:.0f} s, with one line and exit code 143, 130 or 137; the resumed run equals "
        "the uninterrupted run, bit for bit",
        "The launcher passes signals on, both processes end after the same step, and neither outlives the other.",
        lambda attempt: SIGNALS[attempt.number % len(SIGNALS)](attempt),
        max_jobs=1,
    ),
]
