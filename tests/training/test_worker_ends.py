"""The workers of a training end with it, also where the process goes on, as in a sweep."""

import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest
from configurations import compose, settings_of
from conftest import ONE_HEAD, Here, Refused
from torch import Tensor

from dml.run.builders import build_table
from dml.run.loop import build_data
from dml.runtime.errors import InputError


def test_no_worker_outlives_its_training(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    before = set(active_children())
    arguments = [f"dataset.root={small_emoji}", *ONE_HEAD, "data.num_workers=2", "trainer.val_check_interval=2"]
    here("train", *arguments, "trainer.max_steps=2", f"hydra.run.dir={tmp_path}")
    assert set(active_children()) <= before


def test_the_workers_of_all_loaders_end(small_emoji: Path) -> None:
    """A training that stores embeddings makes another loader after that of its validations."""
    before = set(active_children())
    config = compose(f"dataset.root={small_emoji}", *ONE_HEAD, "data.num_workers=1")
    images = build_data(settings_of(config), build_table(settings_of(config)))
    loaders = [images.val_dataloader(), images.training_images()]
    loading = [iter(loader) for loader in loaders]
    images.on_exception(InputError("a batch"))
    assert len(loading) == len(loaders)
    assert set(active_children()) <= before


class BrokenSampler:
    """A user's sampler that raises in the middle of an epoch."""

    images_per_class, classes_per_batch = 2, 4

    def __init__(self, labels: object) -> None:
        self.length = len(labels)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Each epoch is the same."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[list[int]]:
        yield [*range(8)]
        raise KeyError("no such class")


def break_image(image: Tensor) -> Tensor:
    """A user's transform that raises."""
    raise IndexError("list index\nout of range")


OTHERS = [argument for argument in ONE_HEAD if not argument.startswith("sampler.")]
SAMPLER = ["~sampler", "+sampler._partial_=true", f"+sampler._target_={__name__}.BrokenSampler"]
STEP = f"{{_target_: hydra.utils.get_method, path: {__name__}.break_image}}"


@pytest.mark.parametrize(
    ("mistake", "line"),
    [
        (SAMPLER, "sampler: {}.BrokenSampler raised KeyError: 'no such class';"),
        ([f"transform.train.steps=[{STEP}]"], "transform: {}.break_image raised IndexError: list index out of range;"),
        ([f"transform.test.steps=[{STEP}]"], "transform: {}.break_image raised IndexError: list index out of range;"),
    ],
    ids=["sampler", "training", "validation"],
)
def test_what_a_users_object_raises_is_one_line_and_ends_the_workers(
    refused: Refused, small_emoji: Path, tmp_path: Path, mistake: list[str], line: str
) -> None:
    before = set(active_children())
    arguments = [f"dataset.root={small_emoji}", *OTHERS, "data.num_workers=2", "trainer.max_steps=2"]
    said = refused(*arguments, *mistake, f"hydra.run.dir={tmp_path}")
    assert said.startswith(f"error: {line.format(__name__)}")
    assert set(active_children()) <= before


ENDING = """
import multiprocessing, time
from dml.runtime.processes import follow_parent

is_waiting = multiprocessing.get_context("fork").Event()

def wait():
    follow_parent()
    is_waiting.set()
    time.sleep(600)

worker = multiprocessing.get_context("fork").Process(target=wait, daemon=True)
worker.start()
is_waiting.wait()
raise KeyError("a bug")
"""


def test_a_process_that_ends_waits_for_no_worker() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], timeout=120, capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"a bug" in ended.stderr
