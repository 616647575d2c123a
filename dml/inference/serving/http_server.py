"""The HTTP server, which runs in a thread while the main thread waits for signals."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from dml.runtime.errors import InputError
from dml.runtime.text import printable

LIMITS = {"limit_concurrency": 128, "timeout_graceful_shutdown": 3}
"""The connections, idle ones too, from which on others are told to come back, and the seconds that requests under way
may take after a signal.
"""


def open_listener(host: str, port: int) -> socket.socket:
    """Open the socket on which a server listens: "0.0.0.0" is all IPv4 addresses, "::" those of IPv6, 0 a free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family)  # of IPv6 it has four parts
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name"
        line = f"--host {printable(host)} --port {port}: {reason}"
        raise InputError(f"{line}; 127.0.0.1 is this machine, and --port 0 takes any that is free") from error
    # Connections inherit it. asyncio sets it only where the protocol is named, which create_server doesn't, and an
    # answer of two packets would wait 40 ms for the client's acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def running_server(app: ASGIApp, listener: socket.socket) -> Iterator[Future[None]]:
    """Serve an application in the ``with`` body, in a thread of its own: in the main one it would take the signals.

    The future that it yields is done if the server ends by itself, with an error.
    """
    quiet = {"log_config": None, "log_level": "warning", "access_log": False, "server_header": False}
    plain = {"http": "h11", "loop": "asyncio", "ws": "none", "lifespan": "off", "proxy_headers": False}
    server = uvicorn.Server(uvicorn.Config(app, **quiet, **plain, **LIMITS))  # type: ignore[arg-type]
    with ThreadPoolExecutor(1, "http") as executor:
        running = executor.submit(server.run, [listener])
        try:
            yield running
        finally:
            server.should_exit = True
