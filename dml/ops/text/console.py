"""The console on which commands print what they do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dml.ops.escaping import in_markup
from dml.ops.text.speed import ProgressMeter

console = Console(highlight=False, soft_wrap=True, emoji=False)  # a path's ":x:" is no emoji


def warn(line: str) -> None:
    """Print a warning."""
    console.print(f"[bold red]warning[/]  {in_markup(line)}")


@contextmanager
def progress_bar(action: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far a number of items is processed; where output goes into a file or a pipe, print lines instead.

    Args:
        action: a verb such as "verified".
        total: number of all items.

    Yields:
        The function that gets the number of items that were processed since its last call.
    """
    columns = (TextColumn(f"[bold]{action:9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task, meter = progress.add_task(action, total=total), ProgressMeter()

        def advance(number: int) -> None:
            progress.advance(task, number)
            if meter.advance(number, units=number) and not console.is_terminal:
                console.print(f"{action:9}{meter.done:,} of {total:,}, {meter.line(total - meter.done)}", markup=False)

        yield advance
