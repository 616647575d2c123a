"""The connections between the first process of a job and the others, made so that no other program can join."""

import hmac
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import Any

from dml.ops.errors import InputError

JOIN_TIMEOUT = 60.0
"""Seconds that a process has to connect to the first one, once the process group exists."""
HANDSHAKE_TIMEOUT = 5.0
"""Seconds that a new connection has to send its handshake; other connections don't wait for it."""
TOKEN_BYTES = 16
RANK_BYTES = 4


def accept_peers(world_size: int, host: str, broadcast: Callable[[Any], Any]) -> dict[int, socket.socket]:
    """Wait until all other processes have connected -> the connection to each of them, by rank.

    A handshake is the token of the job and the rank of the process that sends it. A connection without the token, or
    with a rank that is not awaited, is closed.

    Args:
        world_size: number of processes.
        host: name or address of this machine, as the other processes reach it.
        broadcast: function that passes the address, the port and the token from this process to all others.

    Raises:
        InputError: if a process doesn't connect in time.
    """
    connections: dict[int, socket.socket] = {}
    identified: Queue[tuple[int, socket.socket]] = Queue()
    token = secrets.token_bytes(TOKEN_BYTES)
    with listen(host) as server:
        broadcast((*server.getsockname()[:2], token))
        Thread(target=_receive_handshakes, args=(server, token, identified), daemon=True).start()
        deadline = monotonic() + JOIN_TIMEOUT
        while len(connections) < world_size - 1:
            try:
                rank, connection = identified.get(timeout=max(0.0, deadline - monotonic()))
            except Empty as error:
                missing = sorted(set(range(1, world_size)) - connections.keys())
                raise InputError(f"processes {missing} did not reach process 0 within {JOIN_TIMEOUT:.0f} s") from error
            if 0 < rank < world_size and rank not in connections:
                connections[rank] = connection
            else:
                connection.close()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # To close the server alone would not wake the thread that accepts.
    return connections


def connect_to_first(rank: int, broadcast: Callable[[Any], Any]) -> socket.socket:
    """Connect to the first process of the job and send the handshake.

    Args:
        rank: number of this process.
        broadcast: function that returns the address, the port and the token that the first process passed to it.

    Raises:
        InputError: if the first process can't be reached.
    """
    host, port, token = broadcast(None)
    try:
        connection = socket.create_connection((host, port), timeout=JOIN_TIMEOUT)
        connection.sendall(token + rank.to_bytes(RANK_BYTES))
    except OSError as error:
        first_process = f"process 0 at {host}:{port}"
        raise InputError(f"process {rank} can't reach {first_process} ({error}): its ports must be open") from error
    connection.settimeout(None)
    return connection


def listen(host: str) -> socket.socket:
    """Open a server on a free port of the one interface that has the address ``host``.

    Raises:
        InputError: if ``host`` is no name or address of this machine.
    """
    reasons = []
    try:
        for family, *_, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            try:
                return socket.create_server(address[:2], family=family)
            except OSError as error:
                reasons.append(str(error))
    except OSError as error:
        reasons.append(str(error))
    raise InputError(
        f"MASTER_ADDR={host}: process 0 can't listen there ({'; '.join(reasons)}); give an address of its machine"
    )


def find_reachable_address(host: str) -> str:
    """Find the address by which other machines reach this one.

    Many systems resolve their own name to a loopback address, by which another machine would reach itself. Then the
    address of the interface that leads to other machines is returned.

    Args:
        host: name or address of this machine.

    Raises:
        InputError: if ``host`` can't be resolved.
    """
    try:
        address = str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise InputError(f"MASTER_ADDR={host}: can't be resolved ({error})") from error
    if not ip_address(address.partition("%")[0]).is_loopback:
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.connect(("192.0.2.1", 9))  # The address is reserved for documentation, and nothing is sent.
        except OSError:  # There is no other interface.
            return address
        return str(datagrams.getsockname()[0])


def _receive_handshakes(server: socket.socket, token: bytes, identified: "Queue[tuple[int, socket.socket]]") -> None:
    """Receive the handshake of each new connection in a separate thread, until the server closes."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        Thread(target=_receive_handshake, args=(connection, token, identified), daemon=True).start()


def _receive_handshake(connection: socket.socket, token: bytes, identified: "Queue[tuple[int, socket.socket]]") -> None:
    """Put a connection and its rank into a queue if its handshake has the job's token; else close it."""
    handshake, deadline = b"", monotonic() + HANDSHAKE_TIMEOUT
    try:
        while len(handshake) < TOKEN_BYTES + RANK_BYTES:
            connection.settimeout(max(0.001, deadline - monotonic()))
            part = connection.recv(TOKEN_BYTES + RANK_BYTES - len(handshake))
            if not part:
                break
            handshake += part
    except OSError:  # The other program sent nothing in time, or closed the connection.
        pass
    if len(handshake) == TOKEN_BYTES + RANK_BYTES and hmac.compare_digest(handshake[:TOKEN_BYTES], token):
        connection.settimeout(None)
        identified.put((int.from_bytes(handshake[TOKEN_BYTES:]), connection))
    else:
        connection.close()
