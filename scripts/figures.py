"""Runs what the papers' figures take and draws them: NRA's Fig. 3 and 4 and HAPPIER's Fig. 4.

python scripts/figures.py                       what is missing, or was interrupted; then docs/images/figures/*.png
python scripts/figures.py nra_4                 one of them
python scripts/figures.py --data /data          on the papers' data sets; /data holds a folder for each
python scripts/figures.py --show                draws what is done
python scripts/figures.py --commands            the commands alone

Without --data the sweeps run on the embedded data, and the map of digits on those that come with scikit-learn.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from dml.ops.errors import InputError
from dml.ops.files import replacing
from dml.run.cli import one_line_errors, say
from dml.run.figures import Figure, chosen, csv_lines
from dml.run.quiet import quiet
from dml.run.reproduce import Plan, check_data, commands, forks, processes, train


def main() -> None:
    """Reads the command line and does what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", help="nra_3, happier_4, nra_4; none: all")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each training")
    parser.add_argument("--data", type=Path, help="the folder with the data sets' folders")
    parser.add_argument("--set", action="append", default=[], help="an override of all, as trainer.max_steps=100")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/figures"), help="for runs and their numbers")
    parser.add_argument("--images", type=Path, default=Path("docs/images/figures"), help="for the pictures")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--commands", action="store_true", help="print the commands, run nothing")
    what.add_argument("--show", action="store_true", help="run nothing, draw what is done")
    arguments = parser.parse_args()
    plan = Plan(arguments.outputs, arguments.seeds, overrides=tuple(arguments.set))
    data = arguments.data and arguments.data.expanduser()
    with one_line_errors():
        figures = chosen(arguments.figures, data)
        if arguments.commands:
            runs = [run for figure in figures for run in figure.runs(plan)]
            for line in commands(runs, data or Path()):
                print(line)
        else:
            jobs = 0 if arguments.show else arguments.jobs
            _make(figures, plan, data, jobs=jobs, images=arguments.images)


def _make(figures: Sequence[Figure], plan: Plan, data: Path | None, *, jobs: int, images: Path) -> None:
    """Figure by figure; what can't be run is named, and the others are made nevertheless."""
    quiet()
    failed = False
    for figure in figures:
        missing = [run for run in figure.runs(plan) if not run.done]
        try:
            if jobs:
                check_data(f"figure {figure.name}", missing, data, "; without DATA it is drawn on data that is here")
                failed |= train(missing, data or Path(), say, jobs, forks if data is None else processes)
            _draw(figure, plan, images)
        except InputError as error:
            sys.stderr.write(f"error: {error}\n")
            failed = True
    if failed:
        sys.exit(2)


def _draw(figure: Figure, plan: Plan, images: Path) -> None:
    from dml.run.drawings import draw

    found = draw(figure, plan, images)
    plan.outputs.mkdir(parents=True, exist_ok=True)
    with replacing(plan.outputs / f"{figure.name}.csv") as partial, partial.open("w", newline="") as file:
        csv.writer(file).writerows(csv_lines(figure, found))
    runs = figure.runs(plan)
    done = sum(run.done for run in runs)
    say(f"{images / figure.name}.png: {figure.title} on {figure.on}, {done} of {len(runs)} runs are done")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
