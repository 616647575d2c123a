"""The processes that a command starts for other commands."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from dml.ops.filesystem.paths import IS_INSTALLED, PACKAGE
from dml.ops.process import child_processes, signals


def python_command(command: str) -> list[str]:
    """Return ``python -m dml COMMAND``, which works in every process that can import the package, in any folder."""
    return [sys.executable, "-m", "dml", command]


def python_environment(**variables: str) -> dict[str, str]:
    """Return the environment in which `python_command` finds the package: the present one, and more variables.

    A checkout need not be installed: ``python checkout/train.py`` finds it beside the script.
    """
    environment = os.environ | variables
    if not IS_INSTALLED:
        python_path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), *([python_path] if python_path else [])])
    return environment


def run_process(command: Sequence[str], **settings: Any) -> int:
    """Run a program -> its exit code; within `signals.waiting_for_processes` it gets the signals of this process.

    Args:
        command: the program and its arguments.
        settings: arguments of `subprocess.Popen`.
    """
    process = subprocess.Popen(command, **settings)  # noqa: S603
    child_processes.started_processes.add(process)
    try:
        if signals.state.signum is not None:  # it came too early for this process
            child_processes.pass_on(signals.state.signum)
        return process.wait()
    finally:
        child_processes.started_processes.discard(process)
