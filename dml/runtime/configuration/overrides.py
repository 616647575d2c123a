from collections.abc import Container, Iterable, Mapping

from dml.runtime.configuration.nested import is_below
from dml.runtime.errors import InputError


def key_of(override: str) -> str:
    """Return the key of an override: ``+loss.margin=0.2`` -> ``loss.margin``."""
    return override.partition("=")[0].lstrip("+~")


def check_set_elsewhere(overrides: Iterable[str], setters: Mapping[str, str], below: Container[str] = ()) -> None:
    """Make sure that no ``--set`` sets what something else sets.

    Args:
        overrides: values of ``--set``.
        setters: the setter of each key instead, such as {"seed": "--seeds"}.
        below: keys of ``setters`` whose nested keys may not be set either: ``loss`` stands for ``loss.margin`` too.

    Raises:
        InputError: if one does.
    """
    for override in overrides:
        key = key_of(override)
        for set_key, setter in setters.items():
            if key == set_key or (set_key in below and is_below(key, [set_key])):
                raise InputError(f"--set {override}: {setter} sets it")
