"""The public names of a package, each of which is imported when it is first used."""

import ast
from collections.abc import Callable
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
