"""The points of a run at which `kill_and_resume.py` and the tests kill it: each is a call in the project's code.

A process that is about to run `train.py` calls `die_at`; nothing in the project itself knows of this.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from dml.ops.run_folder import RunFolder
from dml.run import jobs, outcome
from dml.training.checkpoints import AtomicCheckpointIO
from dml.training.history import History
from dml.training.module import MetricLearner
from dml.training.storing import StoredEmbeddings


@dataclass(frozen=True)
class Point:
    """A call during a run.

    Args:
        owner: the class or module that has the function.
        function: the function's name.
        after: whether the process dies after the call, not before it.
        file_name: if given, only calls with a path among their arguments that ends in this name count.
    """

    owner: Any
    function: str
    after: bool = False
    file_name: str | None = None

    def is_met(self, arguments: tuple[Any, ...], within: str) -> bool:
        """Whether a call with these arguments counts; ``within`` stands in the path of one of them, if it isn't ""."""
        paths = [Path(os.fspath(argument)) for argument in arguments if isinstance(argument, str | os.PathLike)]
        paths += [getattr(argument, "path", Path()) for argument in arguments]
        is_same_file = self.file_name is None or any(path.name == self.file_name for path in paths)
        return is_same_file and (not within or any(within in str(path) for path in paths))


POINTS = {
    "before the configuration is written": Point(RunFolder, "write_configuration"),
    "after the configuration is written": Point(RunFolder, "write_configuration", after=True),
    "before the embeddings are stored": Point(StoredEmbeddings, "_store"),
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
    "before a stage begins": Point(jobs, "_start"),
    "after a stage ends": Point(jobs, "_fit", after=True),
    "before the test": Point(outcome, "test"),
    "before metrics.json is written": Point(RunFolder, "write_metrics"),
    "before metrics.json is replaced": Point(Path, "replace", file_name="metrics.json"),
}
"""The points by name."""


def die_at(name: str, occurrence: int, within: str = "") -> None:
    """Makes this process kill itself and its process group, as SIGKILL does, at the n-th time a point is reached.

    Args:
        name: a key of `POINTS`.
        occurrence: n, from 1 on.
        within: only calls with a path in their arguments that contains this.
    """
    calls = 0

    def reached() -> None:
        nonlocal calls
        calls += 1
        if calls == occurrence:
            if name == "in the middle of a checkpoint":
                _write_half()
            os.killpg(os.getpgid(0), signal.SIGKILL)

    _watch(POINTS[name], reached, within)


def count_points() -> Counter[str]:
    """Counts from now on how often this process reaches each point."""
    counts: Counter[str] = Counter()

    def counter(name: str) -> Callable[[], None]:
        return lambda: counts.update([name])

    for name, point in POINTS.items():
        _watch(point, counter(name), "")
    return counts


_partial: Any = None


def _write_half() -> None:
    """Leaves a checkpoint's file as a death during the writing does."""
    _partial.write(b"half of a checkpoint")
    _partial.flush()


def _watch(point: Point, reached: Callable[[], None], within: str) -> None:
    """Replaces the point's function by one that calls ``reached`` before or after it."""
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
