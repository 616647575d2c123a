"""Console output of inject_faults.py."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from faults.rows import Fault, Result

FAILURES = 6
"""Largest number of failures of a row that are shown, one for each kind."""
OUTPUT = 500
"""Number of characters at the end of a failed command's output that are shown."""


class FaultConsole:
    """Prints the rows, their results and their failures."""

    def __init__(self) -> None:
        self.console = Console(width=80, highlight=False)

    def list_rows(self, faults: Sequence[Fault]) -> None:
        """Print a table of rows."""
        table = Table(box=None, pad_edge=False)
        for name, justify in (("row", "left"), ("tries", "right"), ("fault", "left"), ("holds with", "left")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for fault in faults:
            table.add_row(fault.name, str(fault.tries), escape(fault.fault), escape(fault.rule))
        self.console.print(table)

    def print_start(self, seed: int, faults: Sequence[Fault]) -> None:
        """Print the seed and the number of rows."""
        self.console.print(f"seed {seed}, {len(faults)} rows")

    def print_result(self, fault: Fault, result: Result) -> None:
        """Print the result of a row, and some of the failures."""
        color = "red" if result.failures else "green"
        ways = ", ".join(f"{number} {way}" for way, number in result.ways.items())
        line = f"[{color}]{result.held:>4} of {result.tries:<4}[/] {fault.name:16}"
        self.console.print(f"{line} {result.seconds:5.0f} s  {escape(ways)}", soft_wrap=True)
        kinds = Counter(failure.how for failure in result.failures)
        for how, number in kinds.most_common():
            self.console.print(f"       [red]{number:>4} x[/] {escape(how)}", soft_wrap=True)
        for failure in list({failure.how: failure for failure in reversed(result.failures)}.values())[:FAILURES]:
            text = Text(f"try {failure.number}: {failure.how}\n{failure.command}\n{failure.output[-OUTPUT:].strip()}")
            self.console.print(Padding(text, (0, 0, 1, 10)))

    def print_total(self, results: Sequence[Result], seconds: float) -> None:
        """Print how many tries held."""
        tries, held = sum(result.tries for result in results), sum(result.held for result in results)
        self.console.print(f"{held} of {tries} held, in {seconds:.0f} s")

    def print_page(self, path: Path) -> None:
        """Print the path of the page."""
        self.console.print(f"[bold]written[/]  {escape(str(path))}", soft_wrap=True)
