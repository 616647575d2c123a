"""Points at which `kill_and_resume.py` and the tests kill a run. A point is the call of a function of the project.

A process calls `die_at` before it runs `train.py`; the project itself contains no code for this.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from dml.run import final_test, jobs
from dml.runtime.run_folder import RunFolder
from dml.training.callbacks.checkpoints import AtomicCheckpointIO
from dml.training.callbacks.embedding_bank import EmbeddingBankUpdates
from dml.training.loggers import History
from dml.training.module import MetricLearner


@dataclass(frozen=True)
class Point:
    """A call during a run."""

    owner: Any  # class or module of the function
    function: str
    after: bool = False  # whether the point is after the call instead of before it
    file_name: str | None = None  # that a path among the arguments must have for the call to count; None counts all

    def is_met(self, arguments: tuple[Any, ...], within: str) -> bool:
        """Return whether a call with these arguments counts; ``within`` must be a part of a path among them."""
        paths = [Path(os.fspath(argument)) for argument in arguments if isinstance(argument, str | os.PathLike)]
        paths += [getattr(argument, "path", Path()) for argument in arguments]
        is_same_file = self.file_name is None or any(path.name == self.file_name for path in paths)
        return is_same_file and (not within or any(within in str(path) for path in paths))


POINTS = {
    "before the configuration is written": Point(RunFolder, "write_configuration"),
    "after the configuration is written": Point(RunFolder, "write_configuration", after=True),
    "before splits.json is written": Point(RunFolder, "write_splits"),
    "before splits.json is replaced": Point(Path, "replace", file_name="splits.json"),
    "after splits.json is replaced": Point(Path, "replace", after=True, file_name="splits.json"),
    "before the embeddings are stored": Point(EmbeddingBankUpdates, "_compute_bank"),
    "after a step, before its metrics are logged": Point(History, "log_metrics"),
    "after a step's metrics are logged": Point(History, "log_metrics", after=True),
    "before metrics.csv is replaced": Point(Path, "replace", file_name="metrics.csv"),
    "after metrics.csv is replaced": Point(Path, "replace", after=True, file_name="metrics.csv"),
    "before a validation is judged": Point(MetricLearner, "on_validation_epoch_end"),
    "after a validation is judged": Point(MetricLearner, "on_validation_epoch_end", after=True),
    "before last.ckpt is written": Point(AtomicCheckpointIO, "save_checkpoint", file_name="last.ckpt"),
    "before last.ckpt is replaced": Point(Path, "replace", file_name="last.ckpt"),
    "after last.ckpt is replaced": Point(Path, "replace", after=True, file_name="last.ckpt"),
    "before best.ckpt is written": Point(AtomicCheckpointIO, "save_checkpoint", file_name="best.ckpt"),
    "after best.ckpt is replaced": Point(Path, "replace", after=True, file_name="best.ckpt"),
    "in the middle of a checkpoint": Point(torch, "save"),
    "before a stage begins": Point(jobs, "_load_weights"),
    "after a stage ends": Point(jobs, "_fit", after=True),
    "before the test": Point(jobs, "run_test"),
    "before retrieval.png is replaced": Point(Path, "replace", file_name="retrieval.png"),
    "before per_query.parquet is replaced": Point(Path, "replace", file_name="per_query.parquet"),
    "before report.html is replaced": Point(Path, "replace", file_name="report.html"),
    "before the loggers get the final metrics": Point(final_test, "log_final_metrics"),
    "before metrics.json is written": Point(RunFolder, "write_metrics"),
    "before metrics.json is replaced": Point(Path, "replace", file_name="metrics.json"),
}
"""The points, by name."""


def die_at(name: str, occurrence: int, within: str = "", signum: int = signal.SIGKILL, pause: float = 0) -> None:
    """Make this process signal itself the n-th time it reaches a point; SIGKILL goes to its process group.

    A path among the arguments of the call must contain ``within``. After another signal than SIGKILL the process stays
    at the point for ``pause`` seconds, as in a long step.
    """

    def die() -> None:
        if signum != signal.SIGKILL:
            os.kill(os.getpid(), signum)
            time.sleep(pause)
            return
        if name == "in the middle of a checkpoint":
            _partial.write(b"half of a checkpoint")  # as a process does that dies while writing
            _partial.flush()
        os.killpg(os.getpgid(0), signal.SIGKILL)

    act_at(POINTS[name], occurrence, die, within)


def count_points() -> Counter[str]:
    """Count from now on how often this process reaches each point."""
    counts: Counter[str] = Counter()

    def counter(name: str) -> Callable[[], None]:
        return lambda: counts.update([name])

    for name, point in POINTS.items():
        _watch(point, counter(name), "")
    return counts


def act_at(point: Point, occurrence: int, action: Callable[[], None], within: str = "") -> None:
    """Make this process call a function the n-th time it reaches a point, which needn't be one of `POINTS`."""
    calls = 0

    def reached() -> None:
        nonlocal calls
        calls += 1
        if calls == occurrence:
            action()

    _watch(point, reached, within)


_partial: Any = None  # the file of the checkpoint that is being written


def _watch(point: Point, reached: Callable[[], None], within: str) -> None:
    """Replace the function of a point by one that also calls ``reached``, before or after."""
    function = getattr(point.owner, point.function)

    @wraps(function)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        global _partial
        is_met = point.is_met((*arguments, *keywords.values()), within)
        if point.owner is torch:
            _partial = arguments[1]
        if is_met and not point.after:
            reached()
        result = function(*arguments, **keywords)
        if is_met and point.after:
            reached()
        return result

    setattr(point.owner, point.function, watched)
