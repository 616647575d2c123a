"""Deep metric learning: train, test and use networks for image retrieval."""

import os
import sys
from importlib import import_module
from typing import Any

from dml.runtime.imports import read_stub

__version__ = "0.3.0"

try:
    os.getcwd()
except OSError:  # torch's libraries would end the process with a message of their own when they are imported
    sys.stderr.write("error: the working folder was deleted; change to one that exists\n")
    sys.exit(2)

_import_name, __dir__, __all__ = read_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; ``dml.report`` is the package of that name, which can be called."""
    return import_module("dml.report") if name == "report" else _import_name(name)
