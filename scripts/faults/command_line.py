"""Command line of inject_faults.py."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from faults import fixtures, page, table
from faults.commands import ROOT
from faults.console import FaultConsole
from faults.rows import Fault
from faults.runner import Runner
from faults.store import Store


def main(description: str) -> None:
    """Read the command line, make the tries and write the page.

    Args:
        description: text that ``--help`` prints above the options.
    """
    arguments = _parse_arguments(description)
    console = FaultConsole()
    faults = _select_rows(arguments.rows)
    if arguments.list:
        console.list_rows(faults)
        return
    store = Store(arguments.state, resume=arguments.resume)
    began = time.monotonic()
    console.print_start(arguments.seed, faults)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))  # unlike TemporaryDirectory, no copy of this process deletes it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        images = _run(faults, folder, store, arguments, console)
    finally:
        shutil.rmtree(folder)
    results = store.read_results([fault.name for fault in table.FAULTS])
    console.print_total(results, time.monotonic() - began)
    tries = {result.name: result.tries for result in results}
    if all(tries.get(fault.name, 0) >= fault.tries for fault in table.FAULTS):
        page.write_page(arguments.out, table.FAULTS, results, seed=arguments.seed, jobs=arguments.jobs, images=images)
        console.print_page(arguments.out)
    sys.exit(1 if any(result.failures for result in results) else 0)


def _run(faults: list[Fault], folder: Path, store: Store, arguments: argparse.Namespace, console: FaultConsole) -> int:
    """Make the tries of all rows, and return the number of images in the data set."""
    (folder / "fixtures").mkdir()
    made = fixtures.make_fixtures(folder / "fixtures")
    runner = Runner(folder, folder / "fixtures", arguments.seed, arguments.jobs)
    for fault in faults:
        result = store.read(fault.name)
        if result is None:
            result = runner.run(fault, max(1, round(fault.tries * arguments.tries_scale)))
            store.write(result)
        console.print_result(fault, result)
    return len([*made.images.rglob("*.webp")])


def _parse_arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), help="names of rows to try, such as flips-best,sigterm"
    )
    parser.add_argument("--list", action="store_true", help="list the rows and do nothing")
    parser.add_argument("--tries-scale", type=float, default=1.0, help="share of the tries to make, such as 0.1")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of tries at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "reliability.md", help="path of the page")
    parser.add_argument(
        "--state", type=Path, default=Path("outputs/faults.json"), help="path of the file of finished rows"
    )
    parser.add_argument("--resume", action="store_true", help="skip the rows that are finished in --state")
    return parser.parse_args()


def _select_rows(names: list[str] | None) -> list[Fault]:
    known = {fault.name: fault for fault in table.FAULTS}
    if unknown := [name for name in names or () if name not in known]:
        sys.exit(f"--rows={unknown[0]}: no such row; the rows are {', '.join(known)}")
    return [known[name] for name in names] if names else [*table.FAULTS]
