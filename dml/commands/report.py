"""The command ``dml report``."""

import os
from collections.abc import Sequence
from pathlib import Path

from dml.commands.command_parser import CommandParser
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime.files import write_text
from dml.runtime.paths import expand_home
from dml.runtime.text import printable

DESCRIPTION = """\
Write the report of a finished run again, or one report of two runs side by
side, query by query. A report is a single HTML file. It is made of what a run
leaves in its folder (metrics.json, metrics.csv, per_query.parquet, .hydra/)
and of the data set's images. Two runs must have been tested on the same
queries."""

EXAMPLES = {
    "dml report outputs/RUN": "writes outputs/RUN/report.html",
    "dml report outputs/RUN_A outputs/RUN_B": "compares two runs in outputs/report.html",
    "dml report outputs/RUN_A outputs/RUN_B --output page.html": "the same in page.html",
}


def write_report(arguments: Sequence[str]) -> None:
    """Write the report that the arguments of ``dml report`` describe, and print the path of the file."""
    options = _parser().parse_args(arguments)
    from dml.report.page import comparison_report, run_report
    from dml.report.run import read_run

    with one_line_errors():
        run = read_run(options.run)
        if options.other is None:
            path, page = options.run / "report.html", run_report(run)
        else:
            path = find_common_folder(options.run, options.other) / "report.html"
            page = comparison_report(run, read_run(options.other))
        path = options.output or path
        write_text(path, page)
        print_line(printable(path))


def find_common_folder(run: Path, other: Path) -> Path:
    """Return the folder that two runs have in common, at any depth; no run's folder, as reports of runs are there."""
    return Path(os.path.commonpath([run.absolute().parent, other.absolute().parent]))


def _parser() -> CommandParser:
    parser = CommandParser("report", DESCRIPTION, EXAMPLES)
    parser.add_argument("run", type=expand_home, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "other", nargs="?", type=expand_home, metavar="OTHER", help="folder of a run to compare it with"
    )
    parser.add_argument(
        "--output",
        type=expand_home,
        metavar="FILE",
        help="file to write (default: RUN/report.html; of two runs, report.html beside them)",
    )
    return parser
