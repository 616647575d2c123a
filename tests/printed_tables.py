from rich.console import Console
from rich.table import Table


def print_lines(table: Table, width: int = 80) -> list[str]:
    """Return the lines of a table on a terminal, without empty ones and without spaces at their ends."""
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]
