"""Rules that decide whether a try has held."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from faults.commands import MEMORY_LIMIT, EndedCommand
from faults.rows import FailedError

USER_ERROR = 2
TOLD = re.compile(r"(error: |stopped)")
"""The beginning of the line that a command ends with."""

Check = Callable[[], str]
"""A function that compares a result with the one without the fault -> what differs, or an empty string."""


def check_clean(ended: EndedCommand, *folders: Path) -> None:
    """Check what holds for every command: no trace, within the limits, and nothing left behind.

    Args:
        ended: command to check.
        folders: folders that the command wrote to, in which no ``.partial`` file may be left.
    """
    if ended.is_late:
        raise FailedError(f"still running after {ended.seconds:.0f} s", ended)
    if "Traceback (most recent call last)" in ended.err + ended.out:
        raise FailedError("a trace", ended)
    if ended.peak > MEMORY_LIMIT:
        raise FailedError(f"{ended.peak / 1e9:.1f} GB of memory", ended)
    if ended.orphans:
        raise FailedError(f"processes outlive it: {'; '.join(ended.orphans)}", ended)
    check_no_partial(*folders, ended=ended)


def check_no_partial(*folders: Path, ended: EndedCommand | None = None) -> None:
    """Check that no half-written file is left."""
    for folder in folders:
        if left := list(folder.rglob("*.partial")):
            raise FailedError(f"left behind: {left[0].name}", ended)


def check_told(ended: EndedCommand, codes: Iterable[int] = (USER_ERROR,), *folders: Path) -> str:
    """Check that the command ended with one line on stderr and one of the exit codes -> "told"."""
    check_clean(ended, *folders)
    if ended.code not in codes:
        raise FailedError(f"exit code {ended.code}", ended)
    lines = [line for line in ended.err.splitlines() if line.strip()]
    if not lines:
        raise FailedError(f"exit code {ended.code} without a word", ended)
    if len(lines) > 1:
        raise FailedError(f"{len(lines)} lines on stderr", ended)
    if not TOLD.match(lines[0]):
        raise FailedError("the line on stderr begins otherwise", ended)
    if "MemoryError" in lines[0]:
        raise FailedError("the line blames the file for a lack of memory", ended)
    return "told"


def check_unchanged_or_told(
    ended: EndedCommand, differs: Check, *folders: Path, codes: Iterable[int] = (USER_ERROR,)
) -> str:
    """Check that the result is the one without the fault, or that one line told the user -> "unchanged" or "told"."""
    if ended.code:
        return check_told(ended, codes, *folders)
    check_clean(ended, *folders)
    if difference := differs():
        raise FailedError(f"exit code 0, and silently {difference}", ended)
    return "unchanged"


def check_done(ended: EndedCommand, *folders: Path) -> None:
    """Check that the command did its work."""
    check_clean(ended, *folders)
    if ended.code:
        raise FailedError(f"exit code {ended.code}", ended)


def find_run_difference(expected: Path, other: Path) -> str:
    """Return what differs between two finished runs: weights, optimizer, metrics, history; "" if nothing does."""
    if not (other / "metrics.json").exists():
        return "without metrics.json"
    if read_metrics(expected) != read_metrics(other):
        return "with other metrics"
    if (expected / "metrics.csv").read_bytes() != (other / "metrics.csv").read_bytes():
        return "with another metrics.csv"
    for name in ("last.ckpt", "best.ckpt"):
        if digest_state(expected / "checkpoints" / name) != digest_state(other / "checkpoints" / name):
            return f"with another {name}"
    return ""


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read the numbers and the split of metrics.json."""
    content = json.loads((folder / "metrics.json").read_text())
    return {key: value for key, value in content.items() if isinstance(value, int | float) or key in ("split",)}


def digest_state(checkpoint: Path) -> str:
    """Return a digest of all bits of the weights, the optimizer state and the schedule in a checkpoint."""
    content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    return digest_values([content["state_dict"], content["optimizer_states"], content["lr_schedulers"]])


def digest_values(value: Any) -> str:
    """Return a digest of nested values and tensors."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, inner in value.items():
                digest.update(str(key).encode())
                add(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                add(inner)
        else:
            digest.update(repr(value).encode())

    add(value)
    return digest.hexdigest()
