"""Reproduces figures: prints the commands of their runs, or makes the runs and draws the figures."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dml.commands.failures.error_lines import print_line
from dml.commands.start.log_levels import quiet
from dml.ops.errors import InputError
from dml.ops.text.text_tables import write_csv
from dml.papers.figures.sweep_figures import Figure, csv_rows
from dml.papers.plans import Plan, check_data, list_commands, run_forks, run_processes, train_runs

ADVICE = "; without --data it is drawn on data that is here"


def print_commands(figures: Sequence[Figure], plan: Plan, data: Path) -> None:
    """Print the command line of each run that isn't finished.

    Args:
        figures: figures that the runs belong to.
        plan: plan of the runs.
        data: folder that holds the folders of the data sets, which the command lines name.
    """
    runs = [run for figure in figures for run in figure.list_runs(plan)]
    for command in list_commands(runs, data):
        print_line(command)


def reproduce_figures(figures: Sequence[Figure], plan: Plan, data: Path | None, *, jobs: int, images: Path) -> None:
    """Train and draw figure after figure; a figure that can't be trained doesn't keep the next one from it.

    The exit code is 2 if a figure or a run failed.

    Args:
        figures: figures to draw.
        plan: plan of their runs.
        data: folder that holds the folders of the data sets; None for the small settings.
        jobs: runs at a time; 0 draws the finished runs alone.
        images: folder for the figures.
    """
    quiet()
    has_failed = False
    for figure in figures:
        missing = [run for run in figure.list_runs(plan) if not run.is_finished]
        try:
            if jobs:
                check_data(f"figure {figure.name}", missing, data, ADVICE)
                runner = run_forks if data is None else run_processes
                has_failed |= train_runs(missing, data or Path(), print_line, jobs, runner)
            if any(run.is_finished for run in figure.list_runs(plan)):
                _write_figure(figure, plan, images)
            else:  # an earlier picture stays
                print_line(
                    f"{figure.name}: none of its runs is done{', as said above' if jobs else ''}; no picture is drawn"
                )
        except InputError as error:
            sys.stderr.write(f"error: {error}\n")
            has_failed = True
    if has_failed:
        sys.exit(2)


def _write_figure(figure: Figure, plan: Plan, images: Path) -> None:
    """Draw a figure of the finished runs, and write its numbers to a file."""
    from dml.papers.figures.drawings import draw_figure  # importing matplotlib is slow

    quiet()  # again: drawings import Lightning, which sets its own level
    if plan.departures:
        figure = replace(figure, title=f"{figure.title}, with {', '.join(plan.departures)}")
    name = plan.name_results(figure.name)
    values = draw_figure(figure, plan, images)
    write_csv(plan.outputs / f"{name}.csv", csv_rows(figure, values))
    runs = figure.list_runs(plan)
    finished = sum(run.is_finished for run in runs)
    print_line(f"{images / name}.png: {figure.title} on {figure.dataset}, {finished} of {len(runs)} runs are done")
