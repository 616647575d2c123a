"""Checks of paths and class names: a path has to be one that a file can have, and reports have to show both."""

import unicodedata
from collections.abc import Sequence

from dml.runtime.errors import InputError
from dml.runtime.escaping import printable

CHUNK = 1 << 14
"""Number of paths that are checked together: to check them one by one takes ten times as long."""


MISSING_NAMES = frozenset(("-", "#n/a", "<na>", "n/a", "na", "nan", "none", "null"))
"""What programs write in place of a class that is missing, in lower case."""


def compose_name(name: str) -> str:
    """Return the name of a class in its composed form (NFC): systems differ in how they write an accent."""
    return unicodedata.normalize("NFC", name)


def check_paths(paths: Sequence[str], source: str) -> None:
    """Make sure that every path can name a file, and is UTF-8.

    Raises:
        InputError: if a path is empty, ends like a folder's, holds a NUL byte, or isn't UTF-8; the message names the
            first such path.
    """
    for start in range(0, len(paths), CHUNK):
        text = "\n".join(["", *paths[start : start + CHUNK], ""])
        if _is_utf8(text) and not any(sign in text for sign in ("\0", "/\n", "\n\n")):
            continue
        for row, path in enumerate(paths[start : start + CHUNK], start):
            if fault := _describe_fault(path):
                source_words = f" of {printable(source)}" if source else ""
                raise InputError(f"image table: the path '{printable(path)}' in row {row}{source_words} {fault}")


def check_class_names(names: Sequence[str], level: str, source: str) -> None:
    """Make sure that the class names of a level are UTF-8, as all files with results are.

    Raises:
        InputError: if a name isn't UTF-8; the message names the first such class.
    """
    if _is_utf8("\n".join(names)):
        return
    name = next(name for name in names if not _is_utf8(name))
    raise InputError(
        f"image table: the {level} '{printable(name)}' of {printable(source)} isn't UTF-8; rename it, and its folder"
    )


def _describe_fault(path: str) -> str:
    """Return what is wrong with a path, as the end of a sentence; an empty string if nothing is wrong."""
    if not path:
        return "is empty"
    if "\0" in path:
        return "holds a NUL byte, which no file's name does"
    if not _is_utf8(path):
        return "isn't UTF-8, as results are; rename the file or its folder (convmv -f latin1 -t utf8 renames many)"
    return "is a folder's; give an image's" if path.endswith("/") else ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
