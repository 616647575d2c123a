"""Run the benchmarks of dml's parts, and write what they print into docs/benchmarks.md.

python scripts/bench.py                  # all of them, in twenty minutes on two idle cores
python scripts/bench.py losses loading   # some of them; the others stay on the page as they are
python scripts/bench.py --show           # writes the page anew from docs/benchmarks.json

Each benchmark is a process of its own. OMP_NUM_THREADS=1 limits it to one thread, which helps if other work runs
beside it. docs/benchmarks.json holds what it printed, the day, the machine, the cores that other work took beside it,
and the versions of the libraries. The benchmark against other libraries is another one: scripts/bench_peers.py.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from measuring import describe_machine, read_other_seconds

from dml.runtime.errors import InputError
from dml.runtime.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "docs" / "benchmarks.json", ROOT / "docs" / "benchmarks.md"
MARKERS = ("<!-- benchmarks -->", "<!-- /benchmarks -->")
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "faiss-cpu", "pytorch-lightning", "pillow", "simplejpeg")

TITLES = {
    "start": "Start of a command",
    "training": "A training step beside a bare loop",
    "losses": "Losses",
    "loading": "Loading of photographs",
    "evaluation": "Evaluation",
    "sampling": "Samplers",
    "index": "Indexes of a million vectors",
    "embedding": "Embedding and searching of photographs",
}
"""The benchmarks in the order in which they run, scripts/bench_<name>.py, and how the page calls them."""

ARGUMENTS = {"sampling": ["59551"], "evaluation": ["--scale", "0.5"]}
"""What follows a benchmark on its command line; nothing for most."""

PROGRESS_BAR = "\u2501"
"""The character of which Rich draws progress bars, which aren't results."""

MOST_OTHER_WORK = 0.1
"""Cores that other work may take beside a benchmark."""

Result = Mapping[str, Any]
"""What a benchmark printed, and when and where."""


def list_command(name: str) -> list[str]:
    """List the command of a benchmark as one would type it."""
    return ["python", f"scripts/bench_{name}.py", *ARGUMENTS.get(name, [])]


def run_benchmark(name: str) -> Result:
    """Run a benchmark, and show what it prints while it runs."""
    command, lines = list_command(name), []
    started, before = perf_counter(), read_other_seconds()
    with subprocess.Popen([sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if PROGRESS_BAR not in line:
                lines.append(line.rstrip())
    if process.returncode:
        raise InputError(f"{' '.join(command)}: exit code {process.returncode}")
    seconds, after = perf_counter() - started, read_other_seconds()
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": seconds / 60,
        "other_cores": None if before is None or after is None else max(0.0, (after - before) / seconds),
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "machine": describe_machine(),
        "versions": {library: version(library) for library in LIBRARIES},
        "output": lines,
    }


def format_page(results: Mapping[str, Result]) -> str:
    """Format everything between the markers of the page."""
    parts, conditions = [""], dict[str, list[str]]()
    for name, result in results.items():
        cores = result["other_cores"] or 0.0
        warning = f" **Rough ratios: other work took {cores:.1f} cores.**" if cores > MOST_OTHER_WORK else ""
        output = "\n".join(["```text", *result["output"], "```"])
        parts += [f"## {TITLES[name]}", f"`{' '.join(list_command(name))}`{warning}", output]
        conditions.setdefault(describe_conditions(result), []).append(name)
    shared = [
        f"{'All' if len(names) == len(results) else ', '.join(names)}: {line}" for line, names in conditions.items()
    ]
    return "\n\n".join([*parts, "## Machine", *shared, ""])


def describe_conditions(result: Result) -> str:
    """Describe day and machine in a line."""
    machine, threads = result["machine"], result["threads"]
    place = f"{threads} thread{'s' * (threads > 1)} on {machine['cores']} cores of {machine['processor']}"
    return f"{result['day']}, {place}, torch {result['versions']['torch']}."


def write_between(page: Path, markers: tuple[str, str], text: str) -> None:
    """Replace the lines of a page between two markers, which stay."""
    begin, end = markers
    before, opened, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise InputError(f"{page}: lacks the lines {' and '.join(markers)}")
    write_text(page, f"{before}{begin}\n{text}\n{end}{after}")


def read_results() -> dict[str, Result]:
    """Read what earlier runs measured; nothing if there are none."""
    results: dict[str, Result] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return results


def run_benchmarks(names: Sequence[str]) -> None:
    """Run some benchmarks, and write results and page after each of them, so that an interruption loses one at most."""
    results = read_results()
    for name in names:
        print(f"\n{TITLES[name]}\n", flush=True)
        measured = {**results, name: run_benchmark(name)}
        results = {title: measured[title] for title in TITLES if title in measured}
        write_text(RESULTS, json.dumps(results, indent=1) + "\n")
        write_between(PAGE, MARKERS, format_page(results))


def main() -> None:
    """Run the command line; a mistake in it is one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(TITLES)}; all")
    parser.add_argument("--show", action="store_true", help="write the page from docs/benchmarks.json, run nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in TITLES]:
        parser.error(f"{unknown[0]}: not one of {', '.join(TITLES)}")
    try:
        if options.show:
            write_between(PAGE, MARKERS, format_page(read_results()))
        else:
            run_benchmarks(options.names or [*TITLES])
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
