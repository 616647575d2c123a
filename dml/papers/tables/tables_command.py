"""The command ``dml tables``."""

from collections.abc import Sequence
from pathlib import Path

from dml.commands.failures.error_lines import one_line_errors, print_line
from dml.commands.parsed_commands.command_parser import CommandParser, positive_number
from dml.ops.errors import InputError
from dml.ops.filesystem.paths import expand_home
from dml.ops.text.counts import format_count
from dml.papers.tables.paper_tables import find_tables

DESCRIPTION = """\
Train what a paper's table takes and print it: the paper's numbers, ours, the
difference, the runs done and missing. Runs that are finished are not made
again.

Without a name the command is about all tables, with a paper's name about all
of the paper. DATA is a folder that holds a folder for each data set, and
weights/. The papers are rll, nra, lns, happier, rsk and hyp."""

EXAMPLES = {
    "dml tables --list": "lists every table with the numbers of its cells and runs",
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
    is_small = options.preset == "smoke"
    outputs = options.outputs / "smoke" if is_small else options.outputs
    seeds = options.seeds or (1 if is_small else 3)
    with one_line_errors():
        tables = find_tables(options.table and options.table.removeprefix("table-"))  # as targets of make begin
        if options.list:
            print_line(f"{'':20}{'cells':>6}{'runs':>6}")
            for table in tables:
                print_line(f"{f'table-{table}':20}{len(table.cells):6}{seeds * len(table.trainings):6}")
            print_line(f"With {format_count(seeds, 'seed')}. Runs that several tables need are made once.")
            return
        from dml.papers.plans import Plan, list_commands  # after --help and --list: it takes seconds
        from dml.papers.tables.table_reproduction import reproduce_tables

        plan = Plan(outputs, seeds, is_small, tuple(options.set))
        if options.commands:
            runs = [run for table in tables for run in plan.list_table_runs(table)]
            for command in list_commands(runs, options.data or Path("DATA")):
                print_line(command)
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
    action.add_argument("--list", action="store_true", help="list the tables with the numbers of cells and runs")
    action.add_argument("--commands", action="store_true", help="print the commands, and run nothing")
    action.add_argument("--show", action="store_true", help="print the table, and run nothing")
    return parser
