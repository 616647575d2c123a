"""Ports for what a test starts in another process."""

import os
import socket
from itertools import count

FIRST, COUNT = 20_000, 12_000
"""Below the ports that systems give to connections (32768 on Linux), so none is lost between our look and its use."""

_numbers = count(os.getpid() * 997)  # workers have neighboring numbers, and each takes some ports in a row


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on; tests side by side get others, each process by its number."""
    for number in _numbers:
        try:
            with socket.create_server(("127.0.0.1", FIRST + number % COUNT)) as server:
                return int(server.getsockname()[1])
        except OSError:  # taken
            continue
    raise AssertionError
