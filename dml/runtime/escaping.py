"""Functions that make names and paths safe to show: a terminal obeys no character of the result.

Without them, a file name could move the cursor, change colors, or reverse the direction of a line.
"""

import re

from rich.markup import escape

_UNSHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters, with which escape sequences begin
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line ends, and marks that change the direction of writing
    "\ufeff\ud800-\udfff]"  # lone surrogates, as which Python reads the bytes of file names that aren't UTF-8
)


def printable(text: object) -> str:
    r"""Replace each character that a terminal would obey, or that UTF-8 can't encode, by its escape sequence in Python.

    Spaces, quotes, accents and emoji stay as they are. A byte of a file name that isn't UTF-8 becomes ``\xff``.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _UNSHOWN.sub(_escape_character, str(text))


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode makes one of these surrogates from a single byte
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode()


def in_markup(text: object) -> str:
    r"""Make a name `printable`, and escape it for text that Rich reads as markup.

    >>> print(in_markup("[/red]"))
    \[/red]
    """
    return escape(printable(text))
