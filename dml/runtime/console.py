"""The console on which commands print what they do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.control import Control
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dml.runtime.text import ProgressMeter, in_markup

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
