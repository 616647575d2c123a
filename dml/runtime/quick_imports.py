"""Imports of large libraries in less time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 200
"""The number of new modules that pays for `gc.freeze`; after fewer, garbage of an earlier run would stay for good."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Collect no garbage in the ``with`` body, which imports large libraries; commands call it, ``import dml`` doesn't.

    An import makes a million objects that stay. Collections in the meantime take a tenth of its time, and later ones
    pass over these objects (`gc.freeze`).
    """
    if not gc.isenabled():
        yield
        return
    before = len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) - before >= MANY:
            gc.freeze()
        gc.enable()


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Let packages that weren't imported before seem not to be installed in the ``with`` body.

    It is for a library that imports them for nothing of dml's, and does without them.
    """
    hidden_names = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden_names))  # type: ignore[arg-type]  # None raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden_names:
            if sys.modules.get(name, name) is None:
                del sys.modules[name]
