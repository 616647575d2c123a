"""What people read: the console, counts, speeds, tables, and names that are safe to show.

Unescaped, a file name could move the cursor of a terminal, change colors, or reverse the direction of a line.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.control import Control
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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


PLAIN: dict[str, Any] = {
    "highlight": False,
    "soft_wrap": True,
    "emoji": False,  # a path's ":x:" is no emoji
    "force_jupyter": False,  # Rich would display each line as HTML, past sys.stdout and also if it is meant for a file
}


class RunConsole(Console):
    """A console whose lines also stand, as plain text, in the log of a run, once the run has begun.

    A notebook is no terminal, although Jupyter sets FORCE_COLOR: what was printed can't be overwritten by a bar.
    """

    def __init__(self) -> None:
        super().__init__(**PLAIN, force_terminal=False if Console().is_jupyter else None)
        self._log_file: Path | None = None
        self._pending: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `rich.console.Console` does, and note it for the log."""
        super().print(*objects, **options)
        if objects and not any(isinstance(part, Control) for part in objects):  # as a progress bar prints
            self.write_log(*objects, **options)

    def write_log(self, *objects: Any, **options: Any) -> None:
        """Note for the log what something else has printed."""
        text = StringIO()
        Console(file=text, width=self.width, force_terminal=False, **PLAIN).print(*objects, **options)
        self._pending.append(text.getvalue())
        if self._log_file is not None and self._log_file.parent.is_dir():
            with self._log_file.open("a", encoding="utf-8") as file:
                file.writelines(self._pending)
            self._pending.clear()

    def begin_log(self, path: Path) -> None:
        """Write all that was printed since the last log ended, and all that is going to be, to the end of a file."""
        self._log_file = path
        self.write_log(end="")

    def end_log(self) -> None:
        """Write nothing more to the log."""
        self._log_file = None
        self._pending.clear()


console = RunConsole()


def warn(line: str) -> None:
    """Print a warning."""
    console.print(f"[bold red]warning[/]  {in_markup(line)}")


@contextmanager
def progress_bar(action: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many items are done of a task such as "verified", by a bar, or by lines in a file or a pipe.

    It yields the function that gets the number of items that were done since its last call.
    """
    columns = (TextColumn(f"[bold]{action:9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task, meter = progress.add_task(action, total=total), ProgressMeter()

        def advance(number: int) -> None:
            progress.advance(task, number)
            if meter.advance(number, units=number) and not console.is_terminal:
                line = f"{action:9}{meter.done:,} of {total:,}, {meter.line(total - meter.done)}"
                Console.print(console, line, markup=False)  # not to the log

        yield advance
