"""The command ``dml reproducibility``."""

from collections.abc import Sequence
from pathlib import Path

from dml.commands.failures.error_lines import one_line_errors
from dml.commands.parsed_commands.command_parser import CommandParser
from dml.ops.filesystem.files import write_text
from dml.ops.filesystem.paths import expand_home

DESCRIPTION = """\
Write a page on the papers' tables: which numbers can be trained as the paper
states, what differs and why, and which values the papers leave unsaid. The
page is made of the comments in the files of the experiments."""

EXAMPLES = {
    "dml reproducibility": "writes docs/reproducibility.md",
    "dml reproducibility page.md": "writes page.md",
}


def write_reproducibility(arguments: Sequence[str]) -> None:
    """Write the page to the file that the arguments of ``dml reproducibility`` name."""
    parser = CommandParser("reproducibility", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "page",
        nargs="?",
        type=expand_home,
        default=Path("docs/reproducibility.md"),
        help="file to write (default: %(default)s)",
    )
    path = parser.parse_args(arguments).page
    from dml.papers.tables.reproducibility_page import render_reproducibility_page  # after --help: it takes seconds

    with one_line_errors():
        write_text(path, render_reproducibility_page())
