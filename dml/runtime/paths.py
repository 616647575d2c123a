import os
import re
from pathlib import Path

from dml.runtime.errors import InputError
from dml.runtime.text import printable

URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""The beginning of a URL, also of one in a `pathlib.Path`, which has a single slash."""


def expand_home(path: str | Path) -> Path:
    """Return a path that a user gave with ``~`` or ``~name`` replaced by the home folder.

    A shell does so where the path is a word of its own, but not in ``dataset.root=~/images``.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{printable(type(path).__name__)}: no path; give a path, as a text or a pathlib.Path")
    if not os.fspath(path):
        raise InputError("an empty path: give that of a file or folder, or . for the working folder")
    if URL.match(os.fspath(path)):
        raise InputError(f"{printable(path)}: a URL; only files can be read, so download it first")
    return Path(os.path.expanduser(path))


def absolute_path(path: str | Path) -> str:
    """Return the absolute path of a file, without ``..``.

    ``link/../1.jpg`` lies beside the folder that the link leads to, where `os.path.abspath` doesn't look.
    """
    text = os.fspath(path)
    absolute = os.path.abspath(text)
    if os.pardir in text.split(os.sep) and (real := os.path.realpath(text)) != os.path.realpath(absolute):
        return real
    return absolute


def shorten_path(path: str) -> str:
    """Return the path from the working folder for a file below it, and any other path as it is.

    >>> shorten_path(os.path.abspath("photos/1.jpg")), shorten_path("/elsewhere/1.jpg")
    ('photos/1.jpg', '/elsewhere/1.jpg')
    """
    return path.removeprefix(os.path.join(os.getcwd(), ""))
