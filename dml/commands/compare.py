"""The command ``dml compare``."""

import sys
from collections.abc import Sequence

from dml.commands.command_parser import CommandParser
from dml.runtime.files import expand_home, write_csv, write_text
from dml.runtime.text import printable

DESCRIPTION = """\
Print one table of finished runs: the mean of each configuration over its
seeds, and how sure it is.

Folders are searched for runs at any depth, so a sweep's folder stands for all
its runs; the unfinished ones are listed on stderr. Runs that differ in the
seed alone share a row. Runs that a sweep ended early have rows of their own.
The Markdown table is in percent: mean ± half the 95 % interval over the seeds
(standard deviation of one run). Below it stand the size of the vectors,
 first weights and choice of checkpoint, and the differences to the
best row with intervals over the test classes."""

EXAMPLES = {
    "dml compare outputs/emoji/rll/* outputs/emoji/nra/*": "the recall@1 of two losses",
    "dml compare multirun --metrics recall@1 nmi": "two metrics of all sweeps",
    "dml compare multirun --csv table.csv": "also writes every metric to table.csv",
}


def compare_runs(arguments: Sequence[str]) -> None:
    """Print the table of runs that the arguments of ``dml compare`` describe, and write it to files."""
    parser = CommandParser("compare", DESCRIPTION, EXAMPLES)
    parser.add_argument("runs", nargs="+", type=expand_home, metavar="RUNS", help="folders of runs or of sweeps")
    metrics, columns = ["level0/recall@1"], "columns of the table (default: level0/recall@1)"
    parser.add_argument("--metrics", nargs="+", default=metrics, metavar="METRIC", help=columns)
    parser.add_argument("--markdown", type=expand_home, metavar="FILE", help="file to write the table to")
    csv = "file to write every metric to, as fractions in full"
    parser.add_argument("--csv", type=expand_home, metavar="FILE", help=csv)
    options = parser.parse(arguments)
    from dml.evaluation.metric import full_metric_name
    from dml.report import comparison

    rows = comparison.compare(comparison.find_runs(options.runs))
    custom = {name.removeprefix("level0/") for row in rows for name in row.metrics if name.startswith("level0/")}
    metrics = [full_metric_name(name, custom) for name in options.metrics]
    notes = (comparison.describe_facts(rows), comparison.describe_differences(rows, metrics[0]))
    table = "\n".join(part for part in (comparison.markdown(rows, metrics), *notes) if part)
    sys.stdout.write(table)
    for folder in comparison.find_unfinished(options.runs):
        sys.stderr.write(f"unfinished: {printable(folder)}\n")
    if options.markdown:
        write_text(options.markdown, table)
    if options.csv:
        write_csv(options.csv, comparison.csv_lines(rows))
