"""Reproduces tables: prints the commands of their runs, or makes the runs and prints the tables."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dml.commands.failures.error_lines import print_line
from dml.ops.errors import InputError
from dml.ops.filesystem.files import write_text
from dml.ops.text.text_tables import write_csv
from dml.papers.plans import Plan, check_data, train_runs
from dml.papers.tables.paper_tables import PAPERS, Table
from dml.papers.tables.table_results import collect_results, csv_rows, format_markdown


def reproduce_tables(tables: Sequence[Table], plan: Plan, data: Path | None, *, trains: bool) -> None:
    """Train and write table after table; a table that can't be trained doesn't keep the next one from it.

    The exit code is 2 if a run failed.

    Args:
        tables: tables to reproduce.
        plan: plan of their runs.
        data: folder that holds the folders of the data sets; None if the user gave none.
        trains: whether the missing runs are made before a table is printed.

    Raises:
        InputError: if the user gave no folder, and a table needs one.
    """
    has_failed = False
    for table in tables:
        missing = [run for run in plan.list_table_runs(table) if not run.is_finished]
        try:
            if trains:
                check_data(f"table {table}", missing, data)
                has_failed |= train_runs(missing, data or Path(), print_line)
            _write_table(table, plan)
        except InputError as error:
            if data is None:
                raise
            sys.stderr.write(f"error: {error}\n")
            has_failed = True
    if has_failed:
        sys.exit(2)


def _write_table(table: Table, plan: Plan) -> None:
    """Print a table with the results of the finished runs, and write it to files.

    Trainings that the user's overrides change have files of their own, which don't replace those of the paper's.
    """
    results = collect_results(table, plan)
    title = f"{PAPERS[table.paper]}, {'Lane' if table.is_lane else 'Table'} {table.name}"
    departures = [*(["smoke on emoji"] if plan.is_small else []), *plan.departures]
    if departures:
        other = "data, network or training" if plan.is_small else "training"
        title = f"{title} ({', '.join(departures)}: not the paper's {other})"
    page = format_markdown(results, title)
    print_line(page)
    name = plan.name_results(str(table))
    write_csv(plan.outputs / f"{name}.csv", csv_rows(results))
    write_text(plan.outputs / f"{name}.md", page)
