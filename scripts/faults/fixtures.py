"""Fixtures that the tries copy and damage: a data set, prepared and half prepared, and small runs on it."""

import atexit
import json
import os
import shutil
import signal
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kill_points import Point, act_at, count_points, die_at
from small_emoji import slice_of_emoji

from dml.run import prepare_job
from faults.commands import EndedCommand, run

STEPS = 8
SMALL = (
    "dataset=folder",
    "dataset.reader.val_fraction=0.4",
    "transform=emoji",
    "transform.size=32",
    "model=small_cnn",
    "model.embed_dim=8",
    "sampler.classes_per_batch=4",
    "sampler.images_per_class=2",
    "data.num_workers=0",
    "trainer.accelerator=cpu",
    f"trainer.max_steps={STEPS}",
    "trainer.val_check_interval=4",
    "trainer.log_every_n_steps=1",
    "checkpoints.every_n_steps=2",
    "training.bank_every_n_steps=4",
    "evaluation.metrics=[recall,map@r]",
    "evaluation.clustering=false",
    "evaluation.report.map=false",
    "evaluation.sheet=null",
)
"""Overrides of the small run, which takes a second."""
LONG = ("trainer.max_steps=80", "trainer.val_check_interval=20", "checkpoints.every_n_steps=10")
"""Further overrides for the long run, which takes a few seconds."""


@dataclass(frozen=True)
class Fixtures:
    """The folder of the fixtures.

    Args:
        path: path of the folder.
    """

    path: Path

    @property
    def images(self) -> Path:
        """The data set before any preparation: a folder of images for each class."""
        return self.path / "images"

    @property
    def prepared(self) -> Path:
        """The data set with a finished cache."""
        return self.path / "prepared"

    @property
    def half_prepared(self) -> Path:
        """The data set after a preparation that was killed before its end."""
        return self.path / "half_prepared"

    @property
    def run(self) -> Path:
        """The folder of the small run, finished."""
        return self.path / "run"

    @property
    def interrupted(self) -> Path:
        """The folder of the small run, killed in the middle."""
        return self.path / "interrupted"

    @property
    def resumed(self) -> Path:
        """The folder of the small run, killed in the middle and resumed to its end."""
        return self.path / "resumed"

    @property
    def long_run(self) -> Path:
        """The folder of the long run, finished."""
        return self.path / "long_run"

    @property
    def run_of_two(self) -> Path:
        """The folder of the long run in two processes, finished."""
        return self.path / "run_of_two"

    @property
    def counts(self) -> dict[str, int]:
        """Number of times that the small run reaches each of `kill_points.POINTS`."""
        content: dict[str, int] = json.loads((self.path / "counts.json").read_text())
        return content

    @property
    def cached_run(self) -> Path:
        """The folder of the small run on the prepared data set, finished."""
        return self.path / "cached_run"


def train_arguments(images: Path, folder: Path | None, *more: str) -> list[str]:
    """Return the arguments of train.py for the small run; without a folder, those for a sweep."""
    place = [f"hydra.run.dir={folder}"] if folder is not None else []
    return [*SMALL, f"dataset.root={images}", *place, *more]


def long_train_arguments(images: Path, folder: Path | None, *more: str) -> list[str]:
    """Return the arguments of train.py for the long run, which signals interrupt at random moments."""
    return train_arguments(images, folder, *LONG, *more)


def two_process_arguments(images: Path, folder: Path) -> list[str]:
    """Return the arguments of train.py for the long run in two processes."""
    return long_train_arguments(images, folder, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


def prepare_arguments(images: Path, *more: str) -> list[str]:
    """Return the arguments of prepare.py for a data set and its cache."""
    return ["dataset=folder", f"dataset.root={images}", "resize=32", "processes=1", "sheet.classes=1", *more]


def cache_folder(images: Path) -> Path:
    """Return the folder in which prepare.py writes the cache of a data set."""
    return images / ".dml" / "folder"


def make_fixtures(path: Path) -> Fixtures:
    """Make all fixtures in an empty folder."""
    fixtures = make_run(path)
    _run_to_end("train.py", *long_train_arguments(fixtures.images, fixtures.long_run), folder=path)
    _run_to_end("train.py", *two_process_arguments(fixtures.images, fixtures.run_of_two), folder=path)
    killed = run(
        "train.py",
        *train_arguments(fixtures.images, fixtures.interrupted),
        folder=path,
        before=lambda: die_at("after last.ckpt is replaced", 3),
    )
    _expect(killed, 137)
    shutil.copytree(fixtures.interrupted, fixtures.resumed)
    _run_to_end("train.py", f"resume={fixtures.resumed}", folder=path)
    shutil.copytree(fixtures.images, fixtures.prepared)
    _run_to_end("scripts/prepare.py", *prepare_arguments(fixtures.prepared), folder=path)
    _run_to_end("train.py", *train_arguments(fixtures.prepared, fixtures.cached_run), folder=path)
    shutil.copytree(fixtures.images, fixtures.half_prepared)
    killed = run(
        "scripts/prepare.py",
        *prepare_arguments(fixtures.half_prepared),
        folder=path,
        before=lambda: act_at(Point(prepare_job, "write_table"), 1, die),
    )
    _expect(killed, 137)
    return fixtures


def make_run(path: Path) -> Fixtures:
    """Make only the images and the finished small run."""
    fixtures = Fixtures(path)
    _extract(slice_of_emoji(path / "emoji.zip", ["food-fruit"]), fixtures.images)
    _run_to_end(
        "train.py", *train_arguments(fixtures.images, fixtures.run), folder=path, before=partial(_record_counts, path)
    )
    return fixtures


def die() -> None:
    """Kill this process and all processes that it started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _extract(archive: Path, images: Path) -> None:
    """Extract the images of an archive, one folder for each class."""
    with zipfile.ZipFile(archive) as source:
        for name in source.namelist():
            if name.endswith(".webp"):
                target = images / Path(name).stem / f"{Path(name).parent.name}.webp"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read(name))


def _record_counts(folder: Path) -> None:
    """Make this process write, when it ends, how often it reached each point."""
    counts = count_points()
    atexit.register(lambda: (folder / "counts.json").write_text(json.dumps(counts)))


def _run_to_end(script: str, *arguments: str, folder: Path, before: Callable[[], None] | None = None) -> None:
    _expect(run(script, *arguments, folder=folder, before=before), 0)


def _expect(ended: EndedCommand, code: int) -> None:
    if ended.code != code:
        raise RuntimeError(f"exit code {ended.code} of {ended.command}\n{ended.out[-2000:]}{ended.err[-4000:]}")
