"""Prints one table of finished runs: the mean of each configuration over its seeds, and how sure it is.

python scripts/compare.py outputs/emoji/rll/* outputs/emoji/nra/*
python scripts/compare.py multirun/2026-11-22_10-00-00 --metrics level0/recall@1 level0/nmi --csv table.csv

Folders are searched for runs at any depth, so a sweep's folder stands for all its runs; the unfinished ones are listed
on stderr. Runs that differ in the seed alone share a row, those that a sweep ended early have rows of their own. The
Markdown table is in percent: mean ± half the 95 % interval (standard deviation of one run).
"""

import argparse
import csv
import sys
from pathlib import Path

from dml.ops.files import replacing
from dml.run.cli import one_line_errors
from dml.run.compare import compare, csv_lines, find_runs, find_unfinished, markdown


def main() -> None:
    """Reads the command line and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs or of sweeps")
    parser.add_argument("--metrics", nargs="+", default=["level0/recall@1"], help="the table's columns")
    parser.add_argument("--markdown", type=Path, help="a file to write the table to as well")
    parser.add_argument("--csv", type=Path, help="a file to write every metric to, as fractions in full")
    arguments = parser.parse_args()
    with one_line_errors():
        rows = compare(find_runs(arguments.runs))
        table = markdown(rows, arguments.metrics)
        print(table, end="")
        for folder in find_unfinished(arguments.runs):
            print(f"unfinished: {folder}", file=sys.stderr)
        if arguments.markdown:
            with replacing(arguments.markdown) as partial:
                partial.write_text(table, encoding="utf-8")
        if arguments.csv:
            with replacing(arguments.csv) as partial, partial.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(csv_lines(rows))


if __name__ == "__main__":
    main()
