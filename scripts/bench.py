"""Run the benchmarks of dml's parts, and write what they print into docs/benchmarks.md.

python scripts/bench.py                  # all of them, in twenty minutes on two idle cores
python scripts/bench.py losses loading   # some of them; the others stay on the page as they are
python scripts/bench.py --show           # writes the page anew from docs/benchmarks.json

Each benchmark is a process of its own. OMP_NUM_THREADS=1 limits it to one thread, which helps if other work runs
beside it. docs/benchmarks.json holds what it printed, the day, the machine, the cores that other work took beside it,
and the versions of the libraries. The benchmark against other libraries is another one: scripts/bench_peers.py.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()

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

from machine import OtherWork, describe_machine

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
    """Run a benchmark, and show what it prints while it runs.

    Raises:
        InputError: if it fails; its output is above.
    """
    started = perf_counter()
    _, *command = list_command(name)
    lines = []
    with (
        OtherWork() as other,
        subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,  # noqa: S603
    ):
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if PROGRESS_BAR not in line:
                lines.append(line.rstrip())
    if process.returncode:
        raise InputError(f"{' '.join(list_command(name))}: exit code {process.returncode}")
    return {
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": (perf_counter() - started) / 60,
        "other_cores": other.cores,
        "threads": int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)),
        "machine": describe_machine(),
        "versions": {library: version(library) for library in LIBRARIES},
        "output": lines,
    }


def format_page(results: Mapping[str, Result]) -> str:
    """Format everything between the markers of the page."""
    parts = []
    for name, result in results.items():
        parts += [
            f"## {TITLES[name]}",
            f"`{' '.join(list_command(name))}`{describe_other_work(result['other_cores'])}",
            "\n".join(["```text", *result["output"], "```"]),
        ]
    return "\n\n".join(["", *parts, "## Machine", *describe_conditions(results), ""])


def describe_other_work(cores: float | None) -> str:
    """Return a warning if other work took cores beside a benchmark; None if that wasn't measured."""
    if cores is None or cores <= MOST_OTHER_WORK:
        return ""
    return f" **Rough ratios: other work took {cores:.1f} cores.**"


def describe_conditions(results: Mapping[str, Result]) -> list[str]:
    """Describe day and machine in a line for each group of benchmarks that share them."""
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(_describe_conditions(result), []).append(name)
    return [
        f"{'All' if len(members) == len(results) else ', '.join(members)}: {conditions}"
        for conditions, members in groups.items()
    ]


def _describe_conditions(result: Result) -> str:
    machine = result["machine"]
    threads = f"{result['threads']} thread{'s' * (result['threads'] > 1)}"
    place = f"{threads} on {machine['cores']} cores of {machine['processor']}"
    return f"{result['day']}, {place}, torch {result['versions']['torch']}."


def write_page(results: Mapping[str, Result]) -> None:
    """Write what the benchmarks printed between the markers of the page."""
    write_between(PAGE, MARKERS, format_page(results))


def write_between(page: Path, markers: tuple[str, str], text: str) -> None:
    """Replace the lines of a page between two markers, which stay.

    Raises:
        InputError: if the page lacks the markers.
    """
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
        write_page(results)


def main() -> None:
    """Run the command line; a mistake in it is one line, and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run: {', '.join(TITLES)}; all")
    parser.add_argument("--show", action="store_true", help="write the page from docs/benchmarks.json, run nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in TITLES]:
        parser.error(f"{unknown[0]}: not one of {', '.join(TITLES)}")
    try:
        if options.show:
            write_page(read_results())
        else:
            run_benchmarks(options.names or [*TITLES])
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
