"""The end of a command whose output is closed while it writes, as in ``dml train --help | head``."""

import os
import select
import signal
import sys
from typing import NoReturn

STDOUT = 1
"""The file descriptor of a process's output."""

CODE = 128 + getattr(signal, "SIGPIPE", 13)
"""The exit code that a shell shows for a program which SIGPIPE has ended."""


def is_output_closed() -> bool:
    """Return whether this process's output is a pipe whose reader has ended."""
    if not hasattr(select, "poll"):  # on Windows
        return False
    poll = select.poll()
    poll.register(STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def end_silently() -> NoReturn:
    """Exit as other programs do at a closed pipe: without a line, and with `CODE`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # Python writes the rest of its buffer there when it exits
    sys.exit(CODE)
