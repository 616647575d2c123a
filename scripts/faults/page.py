"""The page docs/reliability.md."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from dml.ops.filesystem.files import replacing
from dml.ops.text.text_tables import markdown_table
from faults.commands import GRACE_PERIOD, MEMORY_LIMIT, TIME_LIMIT
from faults.rows import Fault, Result

BEFORE = Path(__file__).with_name("before.json")
"""File with the results at an earlier commit: {"commit": ..., "rows": {name: [held, tries]}}."""
HEAD = """# Reliability

What does the project do about damaged files, signals, full disks and hostile input? `make reliability` makes {kinds}
kinds of faults happen to real commands, {tries:,} times in all, and writes this page.
**{held:,} of {tries:,} tries held.**

## What is promised

- Ctrl-C or SIGTERM in training ends the run after the step, with a checkpoint and one line; the exit code is 130 or
  143. A second signal, at least a second later, ends it at once. Outside of training the first one does.
- If one of several processes ends, or the process that started them, all end within 30 seconds.
- After SIGKILL at any point, a run on a CPU can be resumed and ends bit for bit as if nobody had stopped it.
- A damaged file, a full disk or hostile input changes no result silently: one line names the file.

## How it is tried

The script trains a small network on {images} drawings, which takes a second. Each try copies the data set or the run
folder, and damages the copy. Then it runs `train.py`, `evaluate.py` or another command, in a new process.

A try **holds** in one of two ways. Either the result is the same, bit for bit: the loaded weights, the metrics, the
tables and the pixels. Or the command tells the user: it prints one line to stderr, which begins with `error:` or
`stopped`, and ends with the exit code that the second table names.

In both cases the command has to end within {seconds:.0f} seconds, and its largest process may take {memory:.0f} GB of
memory. It may print no trace and leave no `.partial` file. {grace:.0f} seconds later, no process that it started may
be left.

"""
END = """
## How to run it

    make reliability                                             # all rows, and this page
    python scripts/inject_faults.py --list                       # the rows
    python scripts/inject_faults.py --rows flips-best,sigterm    # some of them
    python scripts/inject_faults.py --tries-scale 0.1            # fewer tries of each

The script shows each try that doesn't hold, with its command and what the command printed. The same seed makes the same
faults, except for the moments of signals, which depend on the speed of the machine. The tries with a full or read-only
disk mount a new disk, so they need Linux, and root or user namespaces.
"""


def write_page(
    path: Path, faults: Sequence[Fault], results: Sequence[Result], *, seed: int, jobs: int, images: int
) -> None:
    """Write the page.

    Args:
        path: path of the page.
        faults: rows of the table.
        results: results of the rows, in the same order.
        seed: seed of the random choices.
        jobs: number of tries that ran at a time.
        images: number of images in the data set.
    """
    with replacing(path) as partial:
        partial.write_text(render_page(faults, results, seed=seed, jobs=jobs, images=images), encoding="utf-8")


def render_page(faults: Sequence[Fault], results: Sequence[Result], *, seed: int, jobs: int, images: int) -> str:
    """Return the text of the page."""
    tries, held = sum(result.tries for result in results), sum(result.held for result in results)
    numbers = {"kinds": len(faults), "tries": tries, "held": held, "images": images}
    head = HEAD.format(**numbers, seconds=TIME_LIMIT, memory=MEMORY_LIMIT / 1e9, grace=GRACE_PERIOD)
    seconds = sum(result.seconds for result in results)
    conditions = (
        f"The tries were made on {date.today():%d %B %Y} with seed {seed}: "
        f"{seconds / 60:.0f} minutes of tries, {jobs} at a time. {_describe_machine()}\n"
    )
    return (
        head
        + conditions
        + "\n"
        + _render_table(faults, results)
        + _render_rules(faults)
        + _render_failures(results)
        + END
    )


def _describe_machine() -> str:
    versions = {
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "Lightning": version("pytorch-lightning"),
        "NumPy": np.__version__,
        "PyArrow": pa.__version__,
    }
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"The machine: {os.cpu_count()} cores, {platform.system()} {platform.release()}; {listed}."


def _render_table(faults: Sequence[Fault], results: Sequence[Result]) -> str:
    before: Mapping[str, Sequence[int]] = {}
    commit = ""
    if BEFORE.exists():
        content = json.loads(BEFORE.read_text())
        before, commit = content["rows"], content["commit"]
    earlier = f"at {commit}" if before else "before"
    rows = []
    for fault, result in zip(faults, results, strict=True):
        count = f"**{result.held}**" if result.held == result.tries else str(result.held)
        old = f"{before[fault.name][0]} of {before[fault.name][1]}" if fault.name in before else ""
        cells = [f"`{fault.name}`", _escape_cell(fault.fault), str(result.tries), count, old, _escape_cell(fault.now)]
        rows.append(cells)
    header = ["row", "fault", "tries", "held", f"held {earlier}", "what the project does"]
    return markdown_table(header, rows, right=(2, 3, 4)) + "\n"


def _render_rules(faults: Sequence[Fault]) -> str:
    rows = [[f"`{fault.name}`", _escape_cell(fault.rule)] for fault in faults]
    return f"\n## When a try holds\n\n{markdown_table(['row', 'rule'], rows)}\n"


def _render_failures(results: Sequence[Result]) -> str:
    """Return the section that lists the kinds of failures of each row; an empty string without failures."""
    lines = []
    for result in results:
        kinds: dict[str, int] = {}
        for failure in result.failures:
            kinds[failure.how] = kinds.get(failure.how, 0) + 1
        lines += [f"- `{result.name}`, {number} times: {how}" for how, number in kinds.items()]
    return "\n## What did not hold\n\n" + "\n".join(lines) + "\n" if lines else ""


def _escape_cell(text: str) -> str:
    """Escape brackets that Markdown would read as a link; `markdown_table` escapes the rest."""
    return text.replace("[/", "\\[/")
