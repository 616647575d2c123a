"""The workers of a training end with it, also where the process goes on, as in a sweep."""

from multiprocessing import active_children
from pathlib import Path

import pytest
from configurations import compose, settings_of
from conftest import PLAIN, Here, Refused

from dml.data.dataset import Draw, ImageDataset, Item
from dml.data.image_files.images import UnreadableImageError
from dml.run.builders import build_data, build_table
from dml.runtime.errors import InputError


def test_no_worker_outlives_its_training(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    before = set(active_children())
    arguments = [f"dataset.root={small_emoji}", *PLAIN, "data.num_workers=2"]
    here("train", *arguments, "trainer.max_steps=2", "trainer.val_check_interval=2", f"hydra.run.dir={tmp_path}")
    assert set(active_children()) <= before


def test_no_worker_outlives_a_training_that_fails(refused: Refused, small_emoji: Path, tmp_path: Path) -> None:
    before = set(active_children())
    arguments = [f"dataset.root={small_emoji}", *PLAIN, "data.num_workers=2"]
    refused(*arguments, "optimizer.lr=1e30", f"hydra.run.dir={tmp_path}")
    assert set(active_children()) <= before


@pytest.mark.parametrize("interval", ["1", "null"], ids=["validation", "test"])
def test_no_worker_outlives_an_evaluation_that_fails(
    refused: Refused, small_emoji: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    before = set(active_children())
    load = ImageDataset.__getitem__

    def load_drawn(dataset: ImageDataset, index: int | Draw) -> Item | None:
        if not isinstance(index, tuple):  # a training draws its images
            raise UnreadableImageError("damaged meanwhile")
        return load(dataset, index)

    monkeypatch.setattr(ImageDataset, "__getitem__", load_drawn)
    arguments = [f"dataset.root={small_emoji}", *PLAIN, "data.num_workers=1", "trainer.max_steps=1"]
    run = f"hydra.run.dir={tmp_path}"
    assert "damaged meanwhile" in refused(*arguments, f"trainer.val_check_interval={interval}", run)
    assert set(active_children()) <= before


def test_the_workers_of_all_loaders_end(small_emoji: Path) -> None:
    """A training that stores embeddings makes another loader after that of its validations."""
    before = set(active_children())
    config = compose(f"dataset.root={small_emoji}", *PLAIN, "data.num_workers=1")
    images = build_data(settings_of(config), build_table(settings_of(config)))
    loaders = [images.val_dataloader(), images.training_images()]
    loading = [iter(loader) for loader in loaders]
    images.on_exception(InputError("a batch"))
    assert len(loading) == len(loaders)
    assert set(active_children()) <= before
