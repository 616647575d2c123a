"""Rows about training in two processes: signals to one of them, and unknown programs that connect to their port."""

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from dml.training.distributed import watch
from faults.commands import EndedCommand, RunningCommand, find_processes, run
from faults.fixtures import Fixtures, two_process_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_done, find_run_difference
from faults.signals import check_stopped

ENDS_WITHIN = 20.0
"""Seconds after a signal to one process within which all processes have to end."""
QUICKLY = 15.0
"""Seconds within which the processes have to connect to each other, whatever unknown programs do."""


def _signal_ranks(number: int, *ranks: int) -> Callable[[Try], str]:
    """Return a try that sends a signal to the processes of some ranks while both are training."""

    def make_try(attempt: Try) -> str:
        fixtures, folder = Fixtures(attempt.fixtures), attempt.folder / "run"
        running = RunningCommand("train.py", two_process_arguments(fixtures.images, folder), attempt.folder)
        while not (folder / "checkpoints" / "last.ckpt").exists() and not running.has_ended():
            time.sleep(0.02)
        trainings = [
            process for process, command in find_processes(running.process).items() if "hydra.run.dir" in command
        ]
        processes = [running.process, *(process for process in trainings if process != running.process)]
        began = time.monotonic()
        for rank in ranks:
            os.kill(processes[rank], number)
        ended = running.wait()
        if (seconds := time.monotonic() - began) > ENDS_WITHIN:
            raise FailedError(f"ended {seconds:.0f} s after the signal", ended)
        _check_end(ended, number, ranks)
        again = run("train.py", f"resume={folder}", folder=attempt.folder)
        check_done(again, folder)
        if difference := find_run_difference(fixtures.run_of_two, folder):
            raise FailedError(f"went on, and ended {difference}", again)
        return "stopped, and went on"

    return make_try


def _check_end(ended: EndedCommand, number: int, ranks: tuple[int, ...]) -> None:
    if ended.orphans:
        raise FailedError(f"processes outlive it: {'; '.join(ended.orphans)}", ended)
    if number != signal.SIGKILL:
        check_stopped(ended, number)
    elif ended.code != (137 if 0 in ranks else 1) or "Traceback" in ended.err:
        raise FailedError(f"exit code {ended.code}", ended)


SIGNALS = [
    _signal_ranks(signal.SIGTERM, 0),
    _signal_ranks(signal.SIGTERM, 1),
    _signal_ranks(signal.SIGTERM, 0, 1),
    _signal_ranks(signal.SIGINT, 0, 1),
    _signal_ranks(signal.SIGKILL, 1),
    _signal_ranks(signal.SIGTERM, 0),
]


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def _close_at_once(port: int) -> list[socket.socket]:
    _connect(port).close()
    return []


def _reset(port: int) -> list[socket.socket]:
    line = _connect(port)
    line.send(b"GET")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    line.close()
    return []


def _say_nothing(port: int) -> list[socket.socket]:
    return [_connect(port)]


def _say_nonsense(port: int) -> list[socket.socket]:
    line = _connect(port)
    line.send(os.urandom(4096))
    return [line]


def _speak_http(port: int) -> list[socket.socket]:
    line = _connect(port)
    line.send(b"GET / HTTP/1.1\r\nHost: dml\r\n\r\n")
    return [line]


def _connect_sixty_times(port: int) -> list[socket.socket]:
    return [_connect(port) for _ in range(60)]


STRANGERS = (_close_at_once, _say_nothing, _say_nonsense, _reset, _speak_http, _connect_sixty_times)


def _connect_stranger(attempt: Try) -> str:
    """Let two processes connect through `watch.join`, and an unknown program before the second one."""
    visit = STRANGERS[attempt.number % len(STRANGERS)]
    context = multiprocessing.get_context("fork")
    met, meeting = context.Pipe()
    errors = [attempt.folder / f"rank_{rank}" for rank in (0, 1)]
    began = time.monotonic()
    first = context.Process(target=_run_rank, args=(0, errors[0], meeting, None))
    first.start()
    if not met.poll(QUICKLY):
        first.kill()
        raise FailedError("the first process names no port")
    value = met.recv()
    port = next(part for part in value if isinstance(part, int))
    address = _find_address(port)
    lines = visit(port)
    second = context.Process(target=_run_rank, args=(1, errors[1], None, value))
    second.start()
    for process in (second, first):
        process.join(max(0.1, QUICKLY - (time.monotonic() - began)))
    late = [rank for rank, process in enumerate((first, second)) if process.exitcode is None]
    for process in (first, second):
        process.kill()
        process.join()
    for line in lines:
        line.close()
    errors_text = "".join(path.read_text() for path in errors)
    if late:
        raise FailedError(f"{visit.__name__.strip('_')}: process {late[0]} still waits after {QUICKLY:.0f} s")
    if (first.exitcode, second.exitcode) != (0, 0) or errors_text:
        raise FailedError(f"{visit.__name__.strip('_')}: the job ends: {errors_text.strip()[-300:]}")
    if address not in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        raise FailedError(f"listens on {address}, not on the job's interface alone")
    return "dropped"


def _run_rank(rank: int, errors: Path, meeting: Connection | None, value: object) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)

    def broadcast(sent: object) -> object:
        if meeting is not None:
            meeting.send(sent)
        return value

    watch.join(rank, 2, None, broadcast)
    time.sleep(0.5)
    watch.leave()


def _find_address(port: int) -> str:
    """Return the address that a port of this machine listens on."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, hex_port = local.partition(":")
            if state == "0A" and int(hex_port, 16) == port:
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                return socket.inet_ntop(family, b"".join(words))
    return "nowhere"


FAULTS = [
    Fault(
        "ranks",
        "SIGTERM to the first of two processes that train together, to the second, or to both; Ctrl-C; SIGKILL",
        6,
        f"all end within {ENDS_WITHIN:.0f} s, with one line and exit code 143, 130 or 1; the resumed run equals "
        "the uninterrupted run, bit for bit",
        "The process that gets a signal tells the other one, and both end after the step.",
        lambda attempt: SIGNALS[attempt.number % len(SIGNALS)](attempt),
        max_jobs=1,
    ),
    Fault(
        "strangers",
        "an unknown program that connects to the port of the processes: silent, with nonsense, with HTTP, reset, "
        "sixty at a time",
        12,
        f"the two processes still connect within {QUICKLY:.0f} s and end well; they listen on the job's "
        "interface alone",
        "A connection that doesn't begin with the job's token is closed.",
        _connect_stranger,
    ),
]
