"""Writes a finished run's report again, or one of two runs side by side: a single HTML file each.

python scripts/report.py outputs/emoji/rll/2026-11-22_10-00-00                      into the run's folder
python scripts/report.py outputs/.../RUN_A outputs/.../RUN_B --output report.html   both, tested on the same queries

It reads what a run leaves behind (metrics.json, metrics.csv, per_query.parquet, .hydra/) and the data set's images.
"""

import argparse
from pathlib import Path

from dml.evaluation.report import comparison_report, read_run, run_report
from dml.ops.files import replacing
from dml.run.cli import one_line_errors


def main() -> None:
    """Reads the command line, writes the file and says where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("other", nargs="?", type=Path, help="the folder of a run to compare it with")
    parser.add_argument("--output", type=Path, help="the file; RUN/report.html of one run, report.html of two")
    arguments = parser.parse_args()
    with one_line_errors():
        run = read_run(arguments.run)
        if arguments.other is None:
            path, page = arguments.run / "report.html", run_report(run)
        else:
            path, page = Path("report.html"), comparison_report(run, read_run(arguments.other))
        path = arguments.output or path
        with replacing(path) as partial:
            partial.write_text(page, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
