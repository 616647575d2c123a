"""The page docs/reliability.md."""

import os
import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from dml.runtime.files import replacing
from dml.runtime.text import markdown_table
from faults.commands import GRACE_PERIOD, MEMORY_LIMIT, TIME_LIMIT
from faults.rows import Fault, Result

HEAD = """# Reliability

What does the project do about damaged files, signals, full disks and hostile input? `make reliability` makes {kinds}
kinds of faults happen to real commands, {tries:,} times in all, and writes this page.
**{held:,} of {tries:,} tries held.**

## What is promised

- Ctrl-C or SIGTERM in training ends the run after the step, with a checkpoint and one line; the exit code is 130 or
  143. A second signal, at least a second later, ends it at once. Outside of training the first one does.
- If one of several processes ends, or the process that started them, all end within 30 seconds.
- After SIGKILL at any point, a run on a CPU can be resumed and ends bit for bit as if nobody had stopped it.
- A damaged checkpoint, a full disk or hostile input changes no result silently: one line names the file.

## How it is tried

Each try damages a copy of a data set of {images} drawings, or of the folder of a small run on it, and runs a command.
It **holds** if the result is the same, bit for bit, or if the command tells the user by one line, with exit code 2 or
that of the signal. The command has to end within {seconds:.0f} seconds, in {memory:.0f} GB of memory, without a trace,
a `.partial` file, or a process that is left {grace:.0f} seconds later. `--list` has the rule of each row.

"""
END = """
    python scripts/inject_faults.py --rows flips-best,sigterm --tries-scale 0.1   # some rows, a tenth of the tries

The same seed makes the same faults, except for the moments of signals. A full or read-only disk needs Linux, and root
or user namespaces.
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
        f"{date.today():%d %B %Y}, seed {seed}: {seconds / 60:.0f} minutes of tries, {jobs} at a time. "
        f"{_describe_machine()}\n"
    )
    return head + conditions + "\n" + _render_table(faults, results) + _render_failures(results) + END


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
    rows = [
        [f"`{fault.name}`", _escape_cell(fault.fault), f"{result.held} of {result.tries}", _escape_cell(fault.now)]
        for fault, result in zip(faults, results, strict=True)
    ]
    return markdown_table(["row", "fault", "held", "what the project does"], rows, right=(2,)) + "\n"


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
