"""A line from every process of a job to its first one, so that one that dies ends the job, and its words are told once.

What carries the gradients can't be relied on for that: NCCL waits for a dead process until its timeout, and whoever
gloo wakes only knows that a connection is gone. Here the kernel is the watchman. It closes the connections of a process
that dies, however it dies, and probes those of a machine that has gone silent, whatever the processes' main threads
wait for. Nothing but the standard library is imported: the command line needs this module before anything heavy.
"""

import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

from dml.ops.errors import InputError

JOINED_WITHIN = 60.0
"""Seconds that a process has to reach the first one, once the process group stands."""
PATIENCE = 3.0
"""Seconds that the first process's main thread has to fail as well, and so to write what it still holds."""
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""A machine is taken for dead after 30 seconds of silence; where the system lacks these options its own count."""
DONE = b"done"
TOKEN = 16


class Watch:
    """One process's end of the lines.

    A process says one thing on a line: `DONE`, or the exit code and the text that it fails with. Silence until the
    line closes means that it died. The first process prints the first failure that it hears of, its own included,
    passes the exit code on and exits; every other process exits when it is told so, or when the first one is dead.

    Args:
        rank: of this process; 0 is the first.
        world_size: the number of processes.
        lines: to all others for the first process, to the first for all others.
    """

    def __init__(self, rank: int, world_size: int, lines: Mapping[int, socket.socket]) -> None:
        self.rank, self.world_size, self.lines = rank, world_size, lines
        self._has_left = False
        self._main_has_ended = Event()
        self._ending = Lock()
        # a loader's worker would keep the lines of its parent open beyond the parent's death
        os.register_at_fork(after_in_child=self._hang_up)
        for peer, line in lines.items():
            _probe(line)
            Thread(target=self._hear, args=(peer, line), daemon=True).start()

    def leave(self) -> None:
        """Says that this process has done its work: its end, and that of the first process, is no failure now."""
        self._has_left = True
        self._say(DONE)

    def fail(self, code: int, text: str) -> None:
        """Ends the job, and this process, from its main thread; of several failures the first is told."""
        self._main_has_ended.set()
        if self.rank and self._say(f"{code} {text}".encode()):
            sleep(2 * PATIENCE)  # in which the first process answers, and the answer ends this one
        self._end(code, text)

    def _hear(self, peer: int, line: socket.socket) -> None:
        words = _all_words(line)
        if words == DONE or (not words and self._has_left):
            return
        if not words:
            lost = f"process {peer} of {self.world_size} died without a word"
            self._end(1, f"error: {lost}, killed or out of memory, and the job ends with it\n")
        code, _, text = words.decode().partition(" ")
        self._end(int(code), text, PATIENCE if self.rank == 0 else 0.0)

    def _end(self, code: int, text: str, patience: float = 0.0) -> None:
        with self._ending:  # and never released: whoever comes second waits for the end
            self._has_left = True
            shown = "\x1b[?25h\n" if text and sys.stderr.isatty() else ""  # the cursor, hidden by a progress bar
            sys.stderr.write(shown + text)
            sys.stderr.flush()
            self._main_has_ended.wait(patience)
            self._say(f"{code} ".encode() if self.rank == 0 else DONE)
            sys.stdout.flush()
            os._exit(code)  # a normal exit may wait for what waits for the dead

    def _say(self, words: bytes) -> bool:
        """The only words of this process -> whether all lines took them."""
        taken = True
        for line in self.lines.values():
            try:
                line.sendall(words)
                line.shutdown(socket.SHUT_WR)
            except OSError:  # it is dead, or was told before
                taken = False
        return taken

    def _hang_up(self) -> None:
        for line in self.lines.values():
            line.close()


_watch: Watch | None = None  # of this process, as torch.distributed has one process group


def join(rank: int, world_size: int, host: str, broadcast: Callable[[Any], Any]) -> None:
    """Draws the lines of a job, once all its processes run; a second call does nothing.

    Args:
        rank: of this process.
        world_size: the number of processes.
        host: the first process's machine, as the others reach it.
        broadcast: gives all processes what the first one passes.

    Raises:
        InputError: if they can't reach each other.
    """
    global _watch
    if _watch is None:
        lines = _accept(world_size, broadcast) if rank == 0 else {0: _connect(rank, host, broadcast)}
        _watch = Watch(rank, world_size, lines)


def fail(code: int, text: str) -> None:
    """Ends this process and all others of its job, telling ``text`` once; does nothing in a job of one process."""
    if _watch is not None:
        _watch.fail(code, text)


def leave() -> None:
    """Ends the watch at the job's normal end."""
    global _watch
    if _watch is not None:
        _watch.leave()
    _watch = None


def _accept(world_size: int, broadcast: Callable[[Any], Any]) -> dict[int, socket.socket]:
    lines: dict[int, socket.socket] = {}
    token = secrets.token_bytes(TOKEN)
    with _server() as server:
        server.settimeout(JOINED_WITHIN)
        broadcast((server.getsockname()[1], token))
        while len(lines) < world_size - 1:
            try:
                line, _ = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, world_size)) - lines.keys())
                raise InputError(f"processes {missing} did not reach process 0 within {JOINED_WITHIN:.0f} s") from error
            line.settimeout(JOINED_WITHIN)
            greeting = line.recv(TOKEN + 4, socket.MSG_WAITALL)
            if greeting[:TOKEN] == token:  # and no stranger
                line.settimeout(None)
                lines[int.from_bytes(greeting[TOKEN:])] = line
    return lines


def _connect(rank: int, host: str, broadcast: Callable[[Any], Any]) -> socket.socket:
    port, token = broadcast(None)
    try:
        line = socket.create_connection((host, port), timeout=JOINED_WITHIN)
        line.sendall(token + rank.to_bytes(4))
    except OSError as error:
        where = f"process 0 at {host}:{port}"
        raise InputError(f"process {rank} can't reach {where} ({error}): its ports must be open") from error
    line.settimeout(None)
    return line


def _server() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _probe(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _all_words(line: socket.socket) -> bytes:
    """What is said until the line closes, or breaks."""
    words = b""
    try:
        while part := line.recv(1 << 16):
            words += part
    except OSError:
        pass
    return words
