"""Text for a terminal, a page or another program: counts, speeds, tables, and names that are safe to show.

Unescaped, a file name could move the cursor of a terminal, change colors, or reverse the direction of a line.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic

from rich.markup import escape

from dml.runtime.files import replacing

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


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun; without a plural, it adds an s.

    >>> format_count(1, "class", "classes"), format_count(2000, "image")
    ('1 class', '2,000 images')
    """
    return f"1 {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    r"""Format a Markdown table; its last line has no line break.

    >>> print(markdown_table(["loss", "recall@1"], [["a|b", "61.2"]], right=[1]))
    | loss | recall@1 |
    | --- | ---: |
    | a\|b | 61.2 |

    The columns whose indices are in ``right`` are aligned to the right, such as columns of numbers.
    """
    lines = [header, ["---:" if column in right else "---" for column in range(len(header))], *rows]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the header first, to a CSV file in one step: the file is never seen half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


LINE_EVERY = 30.0
"""Seconds between two lines of progress in a file or a pipe."""


class ProgressMeter:
    """Counts the progress of a long task, and tells when the next line about it is due.

    >>> seconds = iter([0.0, 40.0, 40.0])
    >>> meter = ProgressMeter(clock=lambda: next(seconds))
    >>> meter.advance(images=800), meter.line(left=3)
    (True, '20 images/s, 0:02:00 left')

    Args:
        interval: seconds between two lines.
        first: seconds before the first line, if they are less.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self, interval: float = LINE_EVERY, first: float = LINE_EVERY, clock: Callable[[], float] = monotonic
    ) -> None:
        self.interval, self.due_after, self.clock = interval, min(interval, first), clock
        self.began = self.last_line = clock()
        self.done = self.images = 0

    def advance(self, images: int, units: int = 1) -> bool:
        """Count finished units of work and the images in them; return whether a line is due."""
        self.done += units
        self.images += images
        return self.clock() - self.last_line >= self.due_after

    def pause(self, seconds: float) -> None:
        """Exclude the seconds of other work from the images a second; the estimate of the time left includes them."""
        self.last_line += seconds

    def line(self, left: int) -> str:
        """Return a line of progress: the images a second since the last line, and the time that the units left take."""
        now = self.clock()
        speed = self.images / max(now - self.last_line, 1e-9)
        seconds = left * (now - self.began) / max(1, self.done)
        self.last_line, self.images, self.due_after = now, 0, self.interval
        return f"{speed:,.0f} images/s, {timedelta(seconds=round(seconds))} left"
