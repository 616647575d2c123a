"""How a run starts another one in a process of its own."""

import os
import sys

from dml.run.config_folders import CONF, IS_INSTALLED


def python_command(command: str) -> list[str]:
    """``python -m dml train``: found by every process that can import the package, in any working folder."""
    return [sys.executable, "-m", "dml", command]


def python_environment(**variables: str) -> dict[str, str]:
    """The environment in which `python_command` finds the package: the present one, and more variables.

    A checkout need not be installed: ``python checkout/train.py`` finds it beside the script.
    """
    environment = os.environ | variables
    if not IS_INSTALLED:
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(CONF.parent), *([known] if known else [])])
    return environment
