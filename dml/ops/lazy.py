"""Public names of a package that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_on_use(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build a package's ``__getattr__`` and ``__dir__`` (PEP 562), which import a public name on its first use.

    Importing one module of the package thereby doesn't import the others, nor the libraries that they need.

    >>> get_attribute, list_names = import_on_use("dml.samplers", {"ClassBalancedSampler": "class_balanced"})
    >>> get_attribute("ClassBalancedSampler").__module__
    'dml.samplers.class_balanced'

    Args:
        package: name of the package.
        modules: module of each public name, relative to the package.

    Returns:
        The package's ``__getattr__``, and its ``__dir__``, which lists the public names before they are imported too.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)  # so that the next use doesn't come here
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get_attribute, list_names
