"""Running the project's commands as a user does, and measuring how they end.

A command runs in a copy of this process, which has loaded the libraries already; loading them takes longer than a run.
The copy has its own session, so that a process which outlives the command is found.
"""

import atexit
import multiprocessing.util
import os
import resource
import runpy
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GIGABYTE = 10**9
TIME_LIMIT = 60.0
"""Seconds within which a command has to end."""
MEMORY_LIMIT = 2 * GIGABYTE
"""Bytes that the largest process of a command may hold at a time."""
DATA_LIMIT = 6 * GIGABYTE
"""Bytes of data that a process may allocate beside what it was forked with, so that no fault harms the machine."""
GRACE_PERIOD = 8.0
"""Seconds after the end of a command within which the processes that it started have to end too."""

Before = Callable[[], Any]


@dataclass(frozen=True)
class EndedCommand:
    """The end of a command.

    Args:
        command: command line, as typed in a shell.
        code: exit code as a shell shows it; 128 + n after signal n.
        out: text that the command printed to stdout.
        err: text that the command printed to stderr.
        seconds: duration of the command.
        peak: largest memory in bytes of any process of the command, without the memory that it had when it was forked.
        orphans: processes that outlived the command, as "process id: command".
        is_late: whether the command was still running after `TIME_LIMIT` and was therefore killed.
    """

    command: str
    code: int
    out: str
    err: str
    seconds: float
    peak: int
    orphans: tuple[str, ...]
    is_late: bool


_running: set[int] = set()


def kill_all() -> None:
    """Kill the commands that this process started and has not waited for, with the processes that they started."""
    for session in _running:
        for process in {session, *find_processes(session)}:  # the command itself may not have begun its session yet
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


class RunningCommand:
    """A running command.

    Args:
        script: path of the script below the project's folder, such as "train.py".
        arguments: arguments of the script.
        folder: working directory of the command; files in it receive stdout and stderr.
        before: function that the copy of this process calls before it runs the script.
        fresh: whether the command is a new Python process instead of a copy of this one.
        environment: environment variables to add.
    """

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        before: Before | None = None,
        fresh: bool = False,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.command = shlex.join(["python", script, *arguments]).encode(errors="backslashreplace").decode()
        number = len([*folder.glob("command_*.out")])
        self.out, self.err = folder / f"command_{number}.out", folder / f"command_{number}.err"
        self._began = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.out.touch()
        self.err.touch()
        # a forked process begins with the memory of this one, which counts in its peak
        self._inherited = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        self.process = os.fork()
        _running.add(self.process)
        if self.process == 0:
            self._run(script, arguments, folder, before, fresh, environment or {})

    def signal(self, number: int, *, everyone: bool = False) -> None:
        """Send a signal to the command; with ``everyone`` also to all processes that it started, as a terminal does."""
        (os.killpg if everyone else os.kill)(self.process, number)

    def read_output(self) -> str:
        """Return what the command has printed to stdout so far."""
        return self.out.read_text(errors="replace")

    def has_ended(self) -> bool:
        """Return whether the command has ended; `wait` then returns how."""
        return os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def wait(self) -> EndedCommand:
        """Wait for the end of the command."""
        is_late = False
        while not self.has_ended():
            if time.monotonic() - self._began > TIME_LIMIT:
                is_late = True
                os.killpg(self.process, signal.SIGKILL)
            time.sleep(0.005)
        _, status, usage = os.wait4(self.process, 0)
        _running.discard(self.process)
        seconds = time.monotonic() - self._began
        code = os.waitstatus_to_exitcode(status)
        return EndedCommand(
            self.command,
            code if code >= 0 else 128 - code,
            self.read_output(),
            self.err.read_text(errors="replace"),
            seconds,
            max(0, usage.ru_maxrss * 1024 - self._inherited),
            _kill_orphans(self.process),
            is_late,
        )

    def _run(
        self,
        script: str,
        arguments: Sequence[str],
        folder: Path,
        before: Before | None,
        fresh: bool,
        environment: dict[str, str],
    ) -> None:
        code = 70
        try:
            _become_command(self.out, self.err, folder, environment)
            if fresh:
                os.execv(sys.executable, [sys.executable, str(ROOT / script), *arguments])  # noqa: S606
            code = _run_script(script, arguments, before)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def run(script: str, *arguments: str, folder: Path, **options: Any) -> EndedCommand:
    """Run a command to its end; the options are the keyword arguments of `RunningCommand`."""
    return RunningCommand(script, arguments, folder, **options).wait()


def _become_command(out: Path, err: Path, folder: Path, environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    atexit._clear()  # the exit handlers of this process are not the command's
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    os.environ.update(environment)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # pytest may have replaced these two
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    limit = _allocated_data() + DATA_LIMIT
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _allocated_data() -> int:
    """Return the bytes of data that this process has allocated, used or not."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()


def _run_script(script: str, arguments: Sequence[str], before: Before | None) -> int:
    """Run a script as ``python script`` does, and return the exit code."""
    path = ROOT / script
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    code = 0
    try:
        if before:
            before()
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        code = _exit_code(ended)
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    return code


def _exit_code(ended: SystemExit) -> int:
    if isinstance(ended.code, str):
        sys.stderr.write(f"{ended.code}\n")
        return 1
    return ended.code or 0


def _kill_orphans(session: int) -> tuple[str, ...]:
    """Kill the processes of a session that live longer than `GRACE_PERIOD`, and return them."""
    until = time.monotonic() + GRACE_PERIOD
    while (members := find_processes(session)) and time.monotonic() < until:
        time.sleep(0.02)
    for process in members:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return tuple(f"{process}: {command[:80]}" for process, command in members.items())


def find_processes(session: int) -> dict[int, str]:
    """Return the living processes of a session: {process id: command}."""
    members = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, *_, process_session = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(process_session) == session and state not in "ZX":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                members[int(entry.name)] = command.strip()
        except OSError:  # the process has just ended
            continue
    return members
