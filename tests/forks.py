"""Scripts of the project in a copy of the test process, which has loaded the libraries.

Loading them takes five seconds, longer than most runs.

A test forks a script unless it is about how a process begins: its imports, its environment, or a signal before the run.
Such a test starts `sys.executable`.
"""

import logging
import os
import re
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from multiprocessing import get_context
from pathlib import Path
from typing import cast

from dml.runtime import signals

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class FinishedScript:
    """How a script ended: the exit code is negative, the signal's number, if a signal killed the process."""

    returncode: int
    stdout: str
    stderr: str


class ForkedScript:
    """A script that a copy of this process runs as ``python script ...`` does, in the root folder of the project.

    The process has a session, and so a process group, of its own. The attributes are those of `subprocess.Popen`.
    """

    def __init__(self, script: str, *arguments: str) -> None:
        self._outputs = [cast("TextIOWrapper", tempfile.TemporaryFile("w+")) for _ in range(2)]  # noqa: SIM115  finish closes them
        self._process = get_context("fork").Process(target=self._run, args=(script, arguments))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def _run(self, script: str, arguments: tuple[str, ...]) -> None:
        os.setsid()
        os.chdir(ROOT)
        for descriptor, output in enumerate(self._outputs, start=1):
            os.dup2(output.fileno(), descriptor)
            output.reconfigure(line_buffering=True)  # a signal ends a process without a flush
        sys.stdout, sys.stderr = self._outputs  # pytest has replaced them
        logging.root.handlers.clear()  # pytest's take what a script would print
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._process.exitcode

    def served_port(self, timeout: float = 60) -> int:
        """Wait until the script has printed the address that it serves -> the port."""
        end = time.monotonic() + timeout
        while not (found := re.search(rb"http://[^ ;]*:(\d+)", os.pread(self._outputs[0].fileno(), 10_000, 0))):
            assert self.poll() is None, self.finish()
            assert time.monotonic() < end
            time.sleep(0.05)
        return int(found[1])

    def kill(self) -> None:
        """Kill the process and all others of its group that still run."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()

    def _has_living_processes(self) -> bool:
        """Return whether a process of the group runs: of those that have ended, init has yet to collect some."""
        if self.returncode is None:
            return True
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            if int(group) == self.pid and state not in "ZX":
                return True
        return False

    def finish(self, timeout: float = 240) -> FinishedScript:
        """Wait until the script and all processes of its group have ended; kill them after so many seconds."""
        end = time.monotonic() + timeout
        self._process.join(timeout)
        while (is_late := self._has_living_processes()) and time.monotonic() < end:
            time.sleep(0.02)
        self.kill()
        printed = []
        for output in self._outputs:
            output.seek(0)
            printed.append(output.read())
            output.close()
        assert not is_late, f"{timeout} s were not enough: {printed}"
        assert self.returncode is not None
        return FinishedScript(self.returncode, *printed)


def run_forked(script: str, *arguments: str) -> FinishedScript:
    """Run a script to its end in a copy of this process."""
    return ForkedScript(script, *arguments).finish()


def end_in_fork(function: Callable[[], object]) -> tuple[int, str]:
    """Call a function in a copy of this process that handles signals -> exit code, and what it printed to stderr."""

    def run() -> None:
        os.dup2(errors.fileno(), 2)
        sys.stderr = errors  # pytest has replaced it
        signals.handle_signals()
        function()

    with tempfile.TemporaryFile("w+") as errors:
        process = get_context("fork").Process(target=run)
        process.start()
        process.join()
        errors.seek(0)
        assert process.exitcode is not None
        return process.exitcode, errors.read()
