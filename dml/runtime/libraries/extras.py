"""The check of optional libraries, which the extras of the package install."""

from importlib.util import find_spec

from dml.runtime.errors import InputError


def check_installed(*libraries: str, extra: str) -> None:
    """Check that the libraries of an optional extra are installed.

    Args:
        libraries: names of the libraries, as Python imports them.
        extra: name of the extra that installs them.

    Raises:
        InputError: if one isn't installed; the line says how to install it.
    """
    for library in libraries:
        if find_spec(library) is None:
            raise InputError(f"{library}: not installed; pip install 'dml-retrieval[{extra}]'")
