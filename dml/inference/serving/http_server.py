"""The HTTP server, which runs in a thread while the main thread waits for signals."""

import errno
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from dml.runtime.errors import InputError
from dml.runtime.text import printable

MOST_CONNECTIONS = 128
"""The number of connections from which on others are told to come back; idle ones count."""
PATIENCE = 3
"""Seconds that requests under way may take after a signal."""


def open_listener(host: str, port: int) -> socket.socket:
    """Open the socket on which a server listens: "0.0.0.0" is all IPv4 addresses, "::" those of IPv6, 0 a free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family)  # of IPv6 it has four parts
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host {printable(host)}: no such name or address; 127.0.0.1 is this machine") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"--port {port}: in use on {host}; give another one, or 0 for any that is free") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"--host {host}: not an address of this machine; 127.0.0.1 is one") from error
        if error.errno == errno.EACCES:
            raise InputError(f"--port {port}: only the administrator may use it; give one from 1024 on") from error
        if error.errno in (errno.EINVAL, errno.EAFNOSUPPORT, errno.ENETUNREACH):
            raise InputError(f"--host {printable(host)}: {error.strerror}; 127.0.0.1 is this machine") from error
        raise
    # Connections inherit it. asyncio sets it only where the protocol is named, which create_server doesn't, and an
    # answer of two packets would wait 40 ms for the client's acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def running_server(app: ASGIApp, listener: socket.socket) -> Iterator[Future[None]]:
    """Serve an application in the ``with`` body, in a thread of its own: in the main one it would take the signals.

    The future that it yields is done if the server ends by itself, with an error.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
    )
    server = uvicorn.Server(config)
    with ThreadPoolExecutor(1, "http") as executor:
        running = executor.submit(server.run, [listener])
        try:
            yield running
        finally:
            server.should_exit = True
