"""The watch over the processes of a job: if one dies or fails, all end, and after a signal all stop at the same step.

Every process has a connection to the first one. The connections that carry the gradients don't suffice: NCCL waits for
a dead process until its timeout, and gloo tells which connection has closed, but not why. The kernel closes the
connections of a process that dies, however it dies, and notices a machine that no longer answers. Threads wait for
that, so it doesn't matter what the main threads wait for. This module imports nothing but the standard library, since
the command line needs it before any slow import.
"""

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import Event, Lock, Semaphore, Thread, Timer
from time import sleep
from typing import Any

from dml.ops.filesystem.files import remove_partial_files_of_this_process
from dml.ops.process import child_processes, process_end, signals
from dml.training.distributed.agreement import StepAgreement
from dml.training.distributed.forks import pause_before_forks
from dml.training.distributed.handshake import accept_peers, connect_to_first, find_reachable_address

GRACE_PERIOD = 3.0
"""Seconds that the main thread of the first process has to fail too, and to write its files, after another failed."""
STOP_GRACE_PERIOD = 60.0
"""Seconds that all processes have, after a signal, to finish the step after which they stop."""
LAST_GRACE_PERIOD = 30.0
"""Seconds that processes have to close their loggers after they stopped; then the job ends without them."""
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""Options of a socket by which a machine counts as dead after 30 seconds without an answer.

A system that lacks an option uses the interval that it is configured with.
"""


class Watch:
    """Watches the other processes of a job from one of them.

    A message is a line of JSON: ``["done"]``, ``["fail", code, text]``, or a message of `StepAgreement`. If a
    connection closes before ``done`` or ``fail``, the process at its other end has died. The first process prints the
    first failure, whichever process it comes from, sends the exit code to the others and exits. The others exit when
    they receive it, or when the first process has died.

    Args:
        rank: number of this process; 0 is the first.
        world_size: number of processes.
        connections: connections by rank, from the first process to all others, from any other to the first.
    """

    def __init__(self, rank: int, world_size: int, connections: Mapping[int, socket.socket]) -> None:
        self.rank, self.world_size, self.connections = rank, world_size, connections
        self.agreement = StepAgreement(rank, world_size, self._send, self._start_time_limit)
        self._has_left = False
        self._main_has_ended, self._has_peer_done = Event(), Semaphore(0)
        self._ending, self._sending = Lock(), Lock()
        # A loader's worker would keep the connections of its parent open after the parent has died.
        os.register_at_fork(after_in_child=self._close)
        self._threads = []
        for peer, connection in connections.items():
            _enable_probes(connection)
            self._threads.append(Thread(target=self._receive, args=(peer, connection), daemon=True))
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        """Tell the other processes that the work of this one is done, so that its end is no failure."""
        self._has_left = True
        self._send("done")
        self._finish_sending()

    def fail(self, code: int, text: str) -> None:
        """End the job, and this process; only the first of several failures is printed.

        Args:
            code: exit code of the job.
            text: lines to print.
        """
        self._main_has_ended.set()
        if self.rank and self._send("fail", code, text):
            sleep(2 * GRACE_PERIOD)  # The first process answers in this time, and the answer ends this process.
        self._end(code, text)

    def stop(self, code: int, text: str) -> None:
        """End the job after a signal; the first process returns once the others have ended.

        The main thread calls this.

        Args:
            code: exit code of the job.
            text: lines to print.
        """
        self._main_has_ended.set()
        if self.rank and (signals.state.is_repeated or not self.agreement.is_decided):
            self.fail(code, text)
        if self.rank:
            self._has_left = True
            self._send("done")
            sleep(LAST_GRACE_PERIOD)
            os._exit(code)
        if self.agreement.is_decided and not signals.state.is_repeated:
            for _ in self.connections:
                self._has_peer_done.acquire(timeout=LAST_GRACE_PERIOD)
        self._ending.acquire()
        self._has_left = True
        process_end.write_line(text)
        self._send("fail", code, "")
        for thread in self._threads:
            thread.join(GRACE_PERIOD)

    def _start_time_limit(self) -> None:
        """End the job if a process hasn't stopped within the grace period; called in the first process."""
        timer = Timer(STOP_GRACE_PERIOD, process_end.end_at_once)
        timer.daemon = True
        timer.start()

    def _receive(self, peer: int, connection: socket.socket) -> None:
        is_done = False
        for kind, *values in _receive_messages(connection):
            if kind == "done":
                is_done = True
                self._has_peer_done.release()
            elif kind == "fail":
                code, text = values
                self._end(code, text, GRACE_PERIOD if self.rank == 0 else 0.0)
            else:
                self.agreement.receive(peer, kind, values)
        if not is_done and not self._has_left:
            dead_process = f"process {peer} of {self.world_size}"
            self._end(1, f"error: {dead_process} died, probably killed or out of memory; the job ends with it\n")

    def _end(self, code: int, text: str, grace_period: float = 0.0) -> None:
        with self._ending:  # The body ends the process, so a second thread waits here until then.
            self._has_left = True
            show_cursor = "\x1b[?25h\n" if text and sys.stderr.isatty() else ""  # A progress bar has hidden it.
            sys.stderr.write(show_cursor + text)
            sys.stderr.flush()
            self._main_has_ended.wait(grace_period)
            self._send(*(("fail", code, "") if self.rank == 0 else ("done",)))
            self._finish_sending()
            sys.stdout.flush()
            remove_partial_files_of_this_process()
            child_processes.end_children()
            os._exit(code)  # A normal exit may wait for a thread that waits for the dead process.

    def _send(self, *message: Any) -> bool:
        """Send a message on all connections -> whether none of them was closed."""
        line = json.dumps(message).encode() + b"\n"
        is_sent = True
        with self._sending:
            for connection in self.connections.values():
                try:
                    connection.sendall(line)
                except OSError:  # The other process has died, or has ended as it was told to.
                    is_sent = False
        return is_sent

    def _finish_sending(self) -> None:
        for connection in self.connections.values():
            with suppress(OSError):  # The connection is closed already.
                connection.shutdown(socket.SHUT_WR)

    def _close(self) -> None:
        for connection in self.connections.values():
            connection.close()


_watch: Watch | None = None
"""The watch of this process; None in a job of one process."""


def join(rank: int, world_size: int, host: str | None, broadcast: Callable[[Any], Any]) -> None:
    """Connect this process to the others of its job; all of them call this. A second call does nothing.

    Args:
        rank: number of this process.
        world_size: number of processes.
        host: name or address of the first process's machine, as the others reach it; None if all processes share it.
        broadcast: function that returns, in all processes, the value that the first process passes.

    Raises:
        InputError: if a process can't reach the first one.
    """
    global _watch
    if _watch is None:
        if rank == 0:
            address = "127.0.0.1" if host is None else find_reachable_address(host)
            connections = accept_peers(world_size, address, broadcast)
        else:
            connections = {0: connect_to_first(rank, broadcast)}
        _watch = Watch(rank, world_size, connections)
        pause_before_forks()
        signals.state.end_peers = _watch.fail


def fail(code: int, text: str) -> None:
    """End this process and all others of its job, printing ``text`` once; does nothing in a job of one process."""
    if _watch is not None:
        _watch.fail(code, text)


def stop(code: int, text: str) -> None:
    """End this process and all others of its job after a signal, printing ``text`` once, also in a job of one."""
    if _watch is not None:
        _watch.stop(code, text)
    elif not signals.state.is_silent:
        process_end.write_line(text)


def request_stop(signum: int) -> None:
    """Ask all processes of the job to stop after the same step.

    Args:
        signum: number of the signal that this process got.
    """
    if _watch is not None:
        _watch.agreement.request(signum)


def check_step(step: int) -> bool:
    """Return whether this process has to stop now, after an optimizer step; all processes get the same answer.

    Args:
        step: number of optimizer steps that this process has finished.
    """
    if _watch is None:
        return signals.state.signum is not None
    return _watch.agreement.check(step)


def begin_training(step: int) -> None:
    """Defer signals from now on: this process stops after the step at which `check_step` returns True.

    Args:
        step: number of optimizer steps that this process has finished.
    """
    signals.defer("stopping after this step", request_stop)
    if _watch is not None:
        _watch.agreement.begin(step)


def end_training() -> None:
    """Stop deferring signals, as no optimizer step follows."""
    signals.stop_deferring()
    if _watch is not None:
        _watch.agreement.end()


def leave() -> None:
    """End the watch before this process ends without a failure."""
    global _watch
    if _watch is not None:
        _watch.leave()
    _watch = None
    signals.state.end_peers = None


def _enable_probes(connection: socket.socket) -> None:
    """Let the kernel notice that the machine at the other end no longer answers."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _receive_messages(connection: socket.socket) -> Iterator[list[Any]]:
    """Receive messages until the connection closes or breaks."""
    received = b""
    while True:
        try:
            part = connection.recv(1 << 16)
        except OSError:
            return
        if not part:
            return
        *lines, received = (received + part).split(b"\n")
        for line in lines:
            yield json.loads(line)
