"""Imports: public names when they are first used, and large libraries in less time."""

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dml.runtime.errors import suggest


def read_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package (PEP 562) by the imports in its ``.pyi`` file.

    Type checkers read the same file, so that there is one list of names. A program that uses one loss imports that loss
    alone.
    """
    statements = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    modules = {alias.name: f"{package}.{statement.module}" for statement in imports for alias in statement.names}

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"{package}.{name}: no such name{suggest(name, modules)}")
        return getattr(import_module(modules[name]), name)

    return import_name, lambda: sorted(modules), sorted(modules)


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
