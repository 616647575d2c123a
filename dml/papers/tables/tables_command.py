"""The command ``dml tables``."""

from collections.abc import Sequence
from pathlib import Path

from dml.commands.failures.error_lines import one_line_errors
from dml.commands.parsed_commands.command_parser import CommandParser, positive_number
from dml.ops.errors import InputError
from dml.ops.filesystem.paths import expand_home

DESCRIPTION = """\
Train what a paper's table takes and print it: the paper's numbers, ours, the
difference, the runs done and missing. Runs that are finished are not made
again.

Without a name the command is about all tables, with a paper's name about all
of the paper. DATA is a folder that holds a folder for each data set, and
weights/. The papers are rll, nra, lns, happier, rsk and hyp."""

EXAMPLES = {
    "dml tables --list": "lists every table with its runs and their estimated cost",
    "dml tables rll-I --data /data": "trains what is missing or was interrupted, prints the table",
    "dml tables rll-I --data /data --commands": "prints the commands, to run them elsewhere",
    "dml tables rll-I --show": "prints the table of the finished runs",
    "dml tables rll-I --preset smoke": "trains small on the embedded data, in minutes",
}


def run_tables(arguments: Sequence[str]) -> None:
    """Run ``dml tables``: reproduce tables, list them or print commands.

    Args:
        arguments: arguments of the command line.
    """
    options = _parser().parse_args(arguments)
    from dml.papers.plans import Plan  # after --help: it takes seconds
    from dml.papers.tables.paper_tables import find_tables
    from dml.papers.tables.table_reproduction import list_tables, print_commands, reproduce_tables

    is_small = options.preset == "smoke"
    outputs = options.outputs / "smoke" if is_small else options.outputs
    with one_line_errors():
        plan = Plan(outputs, options.seeds or (1 if is_small else 3), is_small, tuple(options.set))
        tables = find_tables(options.table and options.table.removeprefix("table-"))  # as targets of make begin
        if options.list:
            list_tables(tables, plan)
        elif options.commands:
            print_commands(tables, plan, options.data or Path("DATA"))
        else:
            if options.data and not options.data.is_dir():
                raise InputError(f"--data {options.data}: no such folder; it holds a folder for each data set")
            reproduce_tables(tables, plan, options.data, trains=not options.show)


def _parser() -> CommandParser:
    parser = CommandParser("tables", DESCRIPTION, EXAMPLES)
    parser.add_argument("table", nargs="?", metavar="NAME", help="a table such as rll-I, or a paper such as rll")
    parser.add_argument(
        "--seeds", type=positive_number, metavar="N", help="runs of each training (default: 3, with --preset smoke 1)"
    )
    parser.add_argument("--data", type=expand_home, help="folder with the data sets' folders and weights/")
    parser.add_argument(
        "--preset", choices=["smoke"], help="train on the embedded data, with a thousandth of the steps"
    )
    parser.add_overrides("trainer.precision=bf16-mixed")
    parser.add_folder("--outputs", "outputs/tables", "folder for runs and tables")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="list the tables with their runs and estimated cost")
    action.add_argument("--commands", action="store_true", help="print the commands, and run nothing")
    action.add_argument("--show", action="store_true", help="print the table, and run nothing")
    return parser
