"""Runs what a paper's table takes and prints it: the paper's numbers, ours, the difference, the runs done and missing.

python scripts/table.py rll-I --data /data              what is missing of it, or was interrupted; then the table
python scripts/table.py rll-I --data /data --commands   the commands alone
python scripts/table.py rll-I --show                    the table of what is done
python scripts/table.py rll-I --preset smoke            the same on the embedded data, small and in minutes
python scripts/table.py --list                          every table, its runs, and what they are estimated to cost

Without a name it is all tables, with a paper's name all of its. /data holds a folder for each data set, and weights/.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.run.cli import one_line_errors, say
from dml.run.cost import gpu_hours
from dml.run.experiments import compose
from dml.run.reproduce import Plan, check_data, commands, train
from dml.run.tables import PAPERS, Table, chosen


def main() -> None:
    """Reads the command line and does what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", help="such as rll-I; a paper's name for all of its; none for all there are")
    parser.add_argument("--seeds", type=int, help="runs of each training; 3, or 1 of the small ones")
    parser.add_argument("--data", type=Path, help="the folder with the data sets' folders and weights/")
    parser.add_argument("--preset", choices=["smoke"], help="on the embedded data, with a thousandth of the steps")
    parser.add_argument(
        "--set", action="append", default=[], help="an override of all, as trainer.precision=bf16-mixed"
    )
    parser.add_argument("--outputs", type=Path, default=Path("outputs/tables"), help="for runs and tables")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="names, runs and estimated cost")
    what.add_argument("--commands", action="store_true", help="print the commands, run nothing")
    what.add_argument("--show", action="store_true", help="run nothing, print the table")
    arguments = parser.parse_args()
    small = arguments.preset == "smoke"
    outputs, seeds = arguments.outputs / "smoke" if small else arguments.outputs, arguments.seeds or (1 if small else 3)
    plan = Plan(outputs, seeds, small, tuple(arguments.set))
    data = arguments.data and arguments.data.expanduser()
    with one_line_errors():
        tables = chosen(arguments.table)
        if arguments.list:
            _list(tables, plan)
        elif arguments.commands:
            runs = [run for table in tables for run in plan.table_runs(table)]
            for line in commands(runs, data or Path("DATA")):
                print(line)
        else:
            _reproduce(tables, plan, data, run=not arguments.show)


def _list(tables: Sequence[Table], plan: Plan) -> None:
    print(f"{'':18}{'cells':>6}{'runs':>6}{'done':>6}{'GPU hours':>11}")
    for table in tables:
        runs = plan.table_runs(table)
        hours = sum(gpu_hours(compose(run.training)) for run in runs)
        done = sum(run.done for run in runs)
        print(f"{f'table-{table}':18}{len(table.cells):6}{len(runs):6}{done:6}{hours:11.1f}", flush=True)
    print(f"With {plan.seeds} seeds. GPU hours: an estimate for one V100. Runs that several tables need are made once.")


def _reproduce(tables: Sequence[Table], plan: Plan, data: Path | None, *, run: bool) -> None:
    """Table by table; what can't be run is named, and the others are made nevertheless."""
    failed = False
    for table in tables:
        missing = [one for one in plan.table_runs(table) if not one.done]
        try:
            if run:
                check_data(f"table-{table}", missing, data)
                failed |= train(missing, data or Path(), say)
            _write(table, plan)
        except InputError as error:
            if data is None:
                raise
            sys.stderr.write(f"error: {error}\n")
            failed = True
    if failed:
        sys.exit(2)


def _write(table: Table, plan: Plan) -> None:
    from dml.run.results import csv_lines, lines, markdown

    found = lines(table, plan)
    title = f"{PAPERS[table.paper]}, Table {table.name}" + (" (smoke: not the paper's training)" if plan.small else "")
    text = markdown(found, title)
    print(text)
    plan.outputs.mkdir(parents=True, exist_ok=True)
    with replacing(plan.outputs / f"{table}.md") as partial:
        partial.write_text(text, encoding="utf-8")
    with replacing(plan.outputs / f"{table}.csv") as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(csv_lines(found))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
