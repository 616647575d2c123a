"""What the driver and a peer's process tell each other: a job as a JSON file, and the results as another one.

This module takes the standard library alone, because each peer has its own environment.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter, time
from typing import Any

from measuring import read_memory

Results = dict[str, Any]

LOSS = "multi_similarity"
CLASSES_PER_BATCH, IMAGES_PER_CLASS = 20, 3
BATCH_SIZE = CLASSES_PER_BATCH * IMAGES_PER_CLASS
EVAL_BATCH_SIZE = 128
EMBED_DIM = 128
LEARNING_RATE, WEIGHT_DECAY = 3e-4, 1e-2
NETWORK = "tf_efficientnet_lite0"
PACKAGES = (
    *("torch", "torchvision", "timm", "numpy", "pillow", "dml", "pytorch-lightning", "pytorch-metric-learning"),
    *("open-metric-learning", "sentence-transformers", "transformers", "faiss-cpu"),
)
"""Packages whose versions a peer reports."""


@dataclass(frozen=True)
class Job:
    """What one process of a peer measures."""

    task: str  # "train", "evaluate" (the test split) or "recall" (train until a validation finds `target`)
    folder: str  # of the exported data set, see `peers.exporting`
    size: int  # side of the network's input in pixels
    steps: int  # of the training
    warm_up: int  # first steps that the images per second leave out
    interval: int  # steps between two validations of "recall"
    target: float  # recall@1 on the validation split at which "recall" ends
    workers: int  # processes that load images
    threads: int  # of PyTorch
    channels_last: bool  # whether the network's weights and images are stored channels last in memory
    results: str  # path of the file that the process writes
    started: float  # time at which the driver started the process, in seconds since the epoch

    def write(self, path: Path) -> None:
        """Write the job to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> "Job":
        """Read the job of a file."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the results, with the peak of this process's memory and the versions of its packages."""
        # resource.getrusage counts the driver's memory, from before the exec
        text = json.dumps({**results, "peak_mb": read_memory("VmHWM"), "versions": find_versions()})
        Path(self.results).write_text(text, encoding="utf-8")

    def end_process(self, results: Mapping[str, Any]) -> None:
        """Write the results and end the process at once, from inside of a loop that has no way to end here."""
        self.finish(results)
        os._exit(0)


class StepClock:
    """Records when each step of a training ends."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ends: list[float] = []
        self.first_step_seconds = 0.0

    def add_step(self) -> None:
        """Record the end of a step."""
        if not self.ends:
            self.first_step_seconds = time() - self.job.started
        self.ends.append(perf_counter())

    @property
    def is_done(self) -> bool:
        """Tell whether the job has no more steps."""
        return len(self.ends) >= self.job.steps

    def summarize(self) -> Results:
        """Return the images per second after the warm-up, and the seconds from the process's start to its first step.

        The time of the warm-up's last step begins the measurement. So waiting for images counts.
        """
        ends = self.ends[self.job.warm_up - 1 :]
        speed = BATCH_SIZE * (len(ends) - 1) / (ends[-1] - ends[0])
        return {"images_per_s": speed, "first_step_s": self.first_step_seconds}


class RecallClock:
    """Records the recall@1 of each validation, and when it was known."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.validations: list[dict[str, float]] = []

    def add_validation(self, step: int, recall: float) -> bool:
        """Record a validation -> whether it has found the job's target."""
        self.validations.append({"step": step, "recall@1": recall, "seconds": time() - self.job.started})
        return recall >= self.job.target

    def summarize(self) -> Results:
        """Return the seconds and steps to the target, None if it wasn't found, and all validations."""
        last = self.validations[-1]
        is_found = last["recall@1"] >= self.job.target
        target_results = {"target_s": last["seconds"], "target_step": last["step"]} if is_found else {"target_s": None}
        return {**target_results, "validations": self.validations}


def find_versions() -> dict[str, str]:
    """Return the versions of those of `PACKAGES` that this environment has, and that of Python."""
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def run_job(tasks: Mapping[str, Callable[[Job], Results]]) -> None:
    """Run the job whose file the command line names, by the function of its task."""
    job = Job.read(sys.argv[1])
    job.finish(tasks[job.task](job))
