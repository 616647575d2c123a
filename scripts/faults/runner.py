"""Making the tries of a row, several at a time, each in its own process."""

import os
import pickle
import shutil
import signal
import sys
import time
import traceback
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from faults.commands import kill_all
from faults.rows import FailedError, Fault, Result, Try, Verdict

OUTPUT_LENGTH = 3000
"""Number of characters at the end of a failed command's output that the verdict holds."""


@dataclass(frozen=True)
class Runner:
    """Makes tries.

    Args:
        folder: folder in which each try gets a folder, which is deleted afterwards.
        fixtures: folder of the fixtures.
        seed: seed of all random choices.
        jobs: number of tries at a time.
    """

    folder: Path
    fixtures: Path
    seed: int
    jobs: int

    def run(self, fault: Fault, tries: int) -> Result:
        """Make the tries of a row."""
        result = Result(fault.name)
        waiting, running = list(range(tries)), dict[int, int]()
        verdicts = {}
        try:
            while waiting or running:
                while waiting and len(running) < min(self.jobs, fault.max_jobs or self.jobs):
                    number = waiting.pop(0)
                    running[self._start(fault, number)] = number
                process, status = os.wait()
                number = running.pop(process)
                verdicts[number] = self._read(fault, number, os.waitstatus_to_exitcode(status))
        finally:
            for process in running:  # left only if this script is stopped
                os.kill(process, signal.SIGTERM)
                os.waitpid(process, 0)
        for number in range(tries):
            result.add(verdicts[number])
        return result

    def _try_folder(self, fault: Fault, number: int) -> Path:
        return self.folder / f"{fault.name}-{number}"

    def _start(self, fault: Fault, number: int) -> int:
        """Make a try in a copy of this process, and return the process id."""
        sys.stdout.flush()
        if process := os.fork():
            return process
        try:
            verdict = self.attempt(fault, number)
            self._try_folder(fault, number).with_suffix(".verdict").write_bytes(pickle.dumps(verdict))
        finally:
            os._exit(0)

    def attempt(self, fault: Fault, number: int) -> Verdict:
        """Make one try in this process."""
        folder, began = self._try_folder(fault, number), time.monotonic()
        folder.mkdir()
        rng = np.random.default_rng((self.seed, zlib.crc32(fault.name.encode()), number))
        try:
            how = fault.attempt(Try(number, folder, self.fixtures, rng))
        except FailedError as error:
            ended = error.ended
            command, output = (
                (ended.command, ended.out[-OUTPUT_LENGTH:] + ended.err[-OUTPUT_LENGTH:]) if ended else ("", "")
            )
            return Verdict(number, False, error.why, command, output, time.monotonic() - began)
        except Exception:
            why = "the try itself failed"
            return Verdict(number, False, why, output=traceback.format_exc(), seconds=time.monotonic() - began)
        finally:
            kill_all()
            shutil.rmtree(folder, ignore_errors=True)
        return Verdict(number, True, how, seconds=time.monotonic() - began)

    def _read(self, fault: Fault, number: int, code: int) -> Verdict:
        path = self._try_folder(fault, number).with_suffix(".verdict")
        if not path.exists():
            return Verdict(number, False, f"the process of the try ended with {code}")
        verdict: Verdict = pickle.loads(path.read_bytes())  # noqa: S301
        path.unlink()
        return verdict
