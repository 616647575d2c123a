"""Three processes whose main threads wait, as they would for each other on GPUs, and what becomes of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

PROCESS = """
import json, os, sys, time
from pathlib import Path
from dml.training import watch

rank, meeting = int(sys.argv[1]), Path(sys.argv[2])

def broadcast(value):
    if rank == 0:
        written = meeting.with_suffix(".part")
        written.write_text(json.dumps([value[0], value[1].hex()]))
        return written.rename(meeting)
    while not meeting.exists():
        time.sleep(0.01)
    port, token = json.loads(meeting.read_text())
    return port, bytes.fromhex(token)

watch.join(rank, 3, "127.0.0.1", broadcast)
print("joined", flush=True)
while not meeting.with_suffix(".go").exists():  # one may end the others while they still wait for it
    time.sleep(0.001)
exec(sys.argv[3])
"""


class Ended(NamedTuple):
    codes: list[int]
    errors: str


def run(folder: Path, *scripts: str, then_kill: int | None = None) -> Ended:
    """Three processes, each with its script, which begin together; the exit codes, and all that they complained of."""
    meeting = folder / "meeting"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(meeting), scripts[rank]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
    meeting.with_suffix(".go").touch()
    if then_kill is not None:
        os.kill(started[then_kill].pid, signal.SIGKILL)
    errors = [process.communicate(timeout=60)[1] for process in started]
    return Ended([process.returncode for process in started], "".join(errors))


DEAD = "error: process {} of 3 died without a word, killed or out of memory, and the job ends with it\n"
WAITS = "time.sleep(120)"
WORKER = """
if os.fork() == 0:  # as a loader's worker, which outlives its parent
    os.close(1), os.close(2)
    while meeting.exists():
        time.sleep(0.1)
    os._exit(0)
"""


@pytest.mark.parametrize("rank", [1, 2])
def test_the_death_of_a_process_ends_all(tmp_path: Path, rank: int) -> None:
    codes, errors = run(tmp_path, WAITS, WAITS, WAITS, then_kill=rank)
    assert codes == [-signal.SIGKILL if other == rank else 1 for other in range(3)]
    assert errors == DEAD.format(rank)


def test_the_death_of_the_first_process_ends_all(tmp_path: Path) -> None:
    codes, errors = run(tmp_path, WAITS, WAITS, WAITS, then_kill=0)
    assert codes == [-signal.SIGKILL, 1, 1]
    assert errors == 2 * DEAD.format(0)  # there is nobody left to tell it for all


def test_a_worker_that_outlives_its_process_hides_no_death(tmp_path: Path) -> None:
    dies = WORKER + "os.kill(os.getpid(), 9)"
    codes, errors = run(tmp_path, WAITS, dies, WAITS)
    (tmp_path / "meeting").unlink()  # which ends the worker
    assert codes == [1, -signal.SIGKILL, 1]
    assert errors == DEAD.format(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_words_of_one_are_told_once(tmp_path: Path, rank: int) -> None:
    fails = "watch.fail(2, 'error: image 7\\n')"
    codes, errors = run(tmp_path, *(fails if other == rank else WAITS for other in range(3)))
    assert codes == [2, 2, 2]
    assert errors == "error: image 7\n"


def test_what_all_say_is_told_once(tmp_path: Path) -> None:
    fails = "watch.fail(2, 'error: step 3\\n')"
    assert run(tmp_path, fails, fails, fails) == ([2, 2, 2], "error: step 3\n")


@pytest.mark.parametrize("last", [0, 2])
def test_processes_may_end_one_after_the_other(tmp_path: Path, last: int) -> None:
    ends = "watch.leave()"
    scripts = [f"time.sleep(0.5)\n{ends}" if rank == last else ends for rank in range(3)]
    assert run(tmp_path, *scripts) == ([0, 0, 0], "")
