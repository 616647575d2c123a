"""The immediate end of a process that can't wait for its main thread."""

import os
import sys

from dml.ops.filesystem.files import remove_partial_files_of_this_process
from dml.ops.process.child_processes import end_children
from dml.ops.process.signal_state import state


def end_at_once() -> None:
    """End this process and its job, from any thread, without waiting for a library that the main thread is in."""
    code, line = state.finish()
    remove_partial_files_of_this_process()
    if state.end_peers is not None:
        state.end_peers(code, line)
    end_children()
    if not state.is_silent:
        write_line(line)
    os._exit(code)


def write_line(line: str) -> None:
    """Write a line to stderr; below a progress bar, show the cursor again, which the bar has hidden."""
    prefix = "\x1b[?25h\n" if line and sys.stderr.isatty() and state.end_peers is not None else ""
    try:
        sys.stderr.write(prefix + line)
        sys.stderr.flush()
        sys.stdout.flush()
    except (OSError, ValueError):  # the terminal, or the program that read the output, has gone
        pass
