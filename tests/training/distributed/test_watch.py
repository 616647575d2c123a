"""Three processes whose main threads wait, as they would for each other on GPUs, and what becomes of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

from dml.ops.errors import InputError
from dml.training.distributed.handshake import find_reachable_address, listen

pytestmark = pytest.mark.distributed

PROCESS = """
import json, os, sys, time
from pathlib import Path
from dml.training.distributed import watch

rank, meeting = int(sys.argv[1]), Path(sys.argv[2])

def broadcast(value):
    if rank == 0:
        written = meeting.with_suffix(".part")
        written.write_text(json.dumps([*value[:2], value[2].hex()]))
        return written.rename(meeting)
    while not meeting.exists():
        time.sleep(0.01)
    host, port, token = json.loads(meeting.read_text())
    return host, port, bytes.fromhex(token)

if len(sys.argv) > 4:
    exec(sys.argv[4])
watch.join(rank, 3, None, broadcast)
print("joined", flush=True)
while not meeting.with_suffix(".go").exists():  # one may end the others while they still wait for it
    time.sleep(0.001)
exec(sys.argv[3])
"""


class Ended(NamedTuple):
    codes: list[int]
    errors: str


def start(folder: Path, scripts: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Start three processes, each with its script, which begin together."""
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
    return started


def run(folder: Path, *scripts: str, then_kill: int | None = None) -> Ended:
    """Three processes, each with its script, which begin together; the exit codes, and all that they complained of."""
    started = start(folder, scripts)
    if then_kill is not None:
        os.kill(started[then_kill].pid, signal.SIGKILL)
    errors = [process.communicate(timeout=60)[1] for process in started]
    return Ended([process.returncode for process in started], "".join(errors))


DEAD = "error: process {} of 3 died, probably killed or out of memory; the job ends with it\n"
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
def test_the_failure_of_one_is_printed_once(tmp_path: Path, rank: int) -> None:
    fails = "watch.fail(2, 'error: image 7\\n')"
    codes, errors = run(tmp_path, *(fails if other == rank else WAITS for other in range(3)))
    assert codes == [2, 2, 2]
    assert errors == "error: image 7\n"


def test_the_failure_of_all_is_printed_once(tmp_path: Path) -> None:
    fails = "watch.fail(2, 'error: step 3\\n')"
    assert run(tmp_path, fails, fails, fails) == ([2, 2, 2], "error: step 3\n")


@pytest.mark.parametrize("last", [0, 2])
def test_processes_may_end_one_after_the_other(tmp_path: Path, last: int) -> None:
    ends = "watch.leave()"
    scripts = [f"time.sleep(0.5)\n{ends}" if rank == last else ends for rank in range(3)]
    assert run(tmp_path, *scripts) == ([0, 0, 0], "")


# strangers that connect while the processes join


def connect_stranger(folder: Path, greeting: bytes, rank_with_token: int | None = None) -> socket.socket:
    """Connect to the first process as soon as it listens, and send a greeting."""
    meeting = folder / "meeting"
    while not meeting.exists():
        time.sleep(0.005)
    host, port, token = json.loads(meeting.read_text())
    assert host == "127.0.0.1"
    stranger = socket.create_connection((host, port))
    if rank_with_token is not None:
        greeting = bytes.fromhex(token) + rank_with_token.to_bytes(4)
    stranger.sendall(greeting)
    return stranger


STRANGERS = {
    "silent": (b"", None),
    "garbage": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", None),
    "half a greeting": (b"half", None),
    "wrong token": (bytes(20), None),
    "rank out of range": (b"", 3),
    "the first one's rank": (b"", 0),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_dropped_and_the_job_goes_on(tmp_path: Path, name: str) -> None:
    greeting, rank = STRANGERS[name]
    meeting = tmp_path / "meeting"
    waits = "while not meeting.with_suffix('.met').exists(): time.sleep(0.01)"
    ends = "watch.leave()"
    began = time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(number), str(meeting), ends, "" if number == 0 else waits],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(3)
    ]
    stranger = connect_stranger(tmp_path, greeting, rank)
    meeting.with_suffix(".met").touch()  # the others join after the stranger
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
    assert time.monotonic() - began < 5  # nobody waits for the stranger
    meeting.with_suffix(".go").touch()
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert errors == ["", "", ""]
    stranger.close()


def test_two_machines_listen_on_the_address_that_the_name_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_reachable_address("192.0.2.7") == "192.0.2.7"
    assert find_reachable_address("localhost") == find_reachable_address("127.0.0.1")
    with listen("127.0.0.1") as server:
        assert server.getsockname()[0] == "127.0.0.1"
    with pytest.raises(InputError, match=r"MASTER_ADDR=192\.0\.2\.7: process 0 can't listen there"):
        listen("192.0.2.7")


# a step at which all stop

TRAINS = """
watch.begin_training(0)
for step in range(1, 100000):
    time.sleep(0.001 * (1 + rank))
    {signal}
    if watch.check_step(step):
        break
print(step, flush=True)
watch.stop(143, "stopped\\n")
sys.exit(143)
"""
SIGNALS_ITSELF = "if step == 200: watch.request_stop(15)"


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("ranks", [[0], [1], [2], [0, 1, 2]])
def test_processes_stop_at_the_same_step(tmp_path: Path, ranks: list[int]) -> None:
    scripts = [TRAINS.format(signal=SIGNALS_ITSELF if rank in ranks else "") for rank in range(3)]
    started = start(tmp_path, scripts)
    outputs = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [143] * 3
    steps = {printed.strip() for printed, _ in outputs}
    assert len(steps) == 1
    assert "".join(errors for _, errors in outputs) == "stopped\n"
