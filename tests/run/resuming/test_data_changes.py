"""A run whose data has changed is neither resumed nor tested again, unless the user accepts it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import ONE_HEAD, Here, Refused
from PIL import Image
from runs import train

from dml.runtime.run_folder import RunFolder

CLASSES = 12
SHORT = [*ONE_HEAD, "trainer.max_steps=2", "trainer.val_check_interval=1"]
SHORT += ["sampler.classes_per_batch=2", "evaluation.selection=last"]


def write_photos(folder: Path) -> Path:
    """Write three images for each of some classes."""
    for label in range(CLASSES):
        (folder / f"class{label:02}").mkdir(parents=True)
        for i in range(3):
            pixels = np.random.default_rng((label, i)).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label:02}" / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, beside the folder of its photos."""
    folder = tmp_path_factory.mktemp("trained")
    photos = write_photos(folder / "photos")
    return train(folder / "run", "dataset=folder", f"dataset.root={photos}", *SHORT)


@pytest.fixture
def photos(trained: Path) -> Path:
    """The photos of the run, as they were when it began; a test may change them."""
    photos = trained.parent / "photos"
    shutil.rmtree(photos, ignore_errors=True)
    return write_photos(photos)


@pytest.fixture
def run(trained: Path, photos: Path, tmp_path: Path) -> Path:
    """A copy of the run, to go on with."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_class_that_was_moved_away_stops_resuming_and_testing(
    here: Here, refused: Refused, photos: Path, run: Path, tmp_path: Path
) -> None:
    before = RunFolder(run).splits()
    assert before is not None
    assert sum(map(len, before.values())) == CLASSES
    checkpoint, new = f"checkpoint={run / 'checkpoints' / 'last.ckpt'}", f"hydra.run.dir={tmp_path / 'evaluation'}"
    gone = sorted(before["train"])[0]
    shutil.move(photos / gone, tmp_path / gone)
    line = refused(f"resume={run}", "trainer.max_steps=3")
    assert line.startswith(f"error: resume={run}: the data has changed since the run began: ")
    assert f"1 class gone ({gone})" in line
    assert line.endswith("accept_changed_data=true goes on with the data as it is now")
    assert f"1 class gone ({gone})" in refused(checkpoint, new, command="evaluate")
    here("evaluate", checkpoint, new, "accept_changed_data=true")
    assert RunFolder(run).splits() == before
    here("train", f"resume={run}", "trainer.max_steps=3", "accept_changed_data=true")
    assert RunFolder(run).metrics()["step"] == 3
    after = RunFolder(run).splits()
    assert after is not None
    assert sum(map(len, after.values())) == CLASSES - 1
    here("train", f"resume={run}", "trainer.max_steps=4")  # what was accepted counts from now on


def test_a_test_on_other_data_has_the_transform_of_the_run(
    here: Here, run: Path, small_emoji: Path, tmp_path: Path
) -> None:
    """The data set of the run has chosen transform=imagenet; that of the test would choose another."""
    assert RunFolder(run).choices["transform"] == "imagenet"
    data = ["dataset=emoji", f"dataset.root={small_emoji}", "dataset.counts=null"]
    here("evaluate", f"checkpoint={run / 'checkpoints' / 'last.ckpt'}", *data, f"hydra.run.dir={tmp_path / 'tested'}")
    tested = RunFolder(tmp_path / "tested")
    assert tested.choices["transform"] == "imagenet"
    assert tested.config["transform"] == RunFolder(run).config["transform"]


def test_data_that_was_moved_as_a_whole_is_the_same(
    here: Here, refused: Refused, photos: Path, run: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.move(photos, moved)
    here("train", f"resume={run}", "trainer.max_steps=3", f"dataset.root={moved}")
    (moved / "class03" / "0.png").unlink()
    assert "1 class with other images (class03)" in refused(f"resume={run}", "trainer.max_steps=4")


def test_a_run_without_a_summary_passes(here: Here, photos: Path, run: Path, tmp_path: Path) -> None:
    (photos / "class03" / "0.png").unlink()
    (run / "splits.json").unlink()
    here("evaluate", f"checkpoint={run / 'checkpoints' / 'last.ckpt'}", f"hydra.run.dir={tmp_path / 'evaluation'}")
    here("train", f"resume={run}", "trainer.max_steps=3")
    assert (run / "splits.json").exists()


def test_other_data_is_tested_as_a_whole(
    here: Here, refused: Refused, photos: Path, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is trained. What it says of splits counts, and so does what the command line says of the test."""
    checkpoint = f"checkpoint={run / 'checkpoints' / 'last.ckpt'}"

    def test(name: str, *overrides: str) -> str:
        capfd.readouterr()
        here("evaluate", checkpoint, *overrides, f"hydra.run.dir={tmp_path / name}")
        return next(line for line in capfd.readouterr().out.splitlines() if line.startswith("data"))

    other = write_photos(tmp_path / "other")
    (other / "class03" / "0.png").unlink()
    whole = "folder: test 35 images of 12 classes, all that there are"
    assert test("whole", f"dataset.root={other}").endswith(whole)
    assert RunFolder(tmp_path / "whole").config["dataset"]["reader"]["test_fraction"] is None
    before = RunFolder(run).splits()
    assert before is not None
    own = f"folder: test {3 * len(before['test'])} images of {len(before['test'])} classes"
    assert test("own").endswith(own)
    half = test("typed", f"dataset.root={other}", "dataset.reader.test_fraction=0.5")
    assert f"images of {len(before['test'])} classes" in half
    assert "all that there are" not in half
    divided = tmp_path / "divided"
    for split in ("query", "gallery"):
        write_photos(divided / split)
    line = test(
        "divided",
        "dataset=folder",
        f"dataset.root={divided}",
        "dataset.name=divided",
        "dataset.queries_in_gallery=true",
    )
    assert "divided: query 36 images of 12 classes, gallery 36 of 12" in line
    assert "(for a test alone: dataset.reader.test_fraction=null)" in refused(
        "dataset=folder", f"dataset.root={divided}"
    )
    shutil.move(photos, tmp_path / "moved")
    assert test("moved", f"dataset.root={tmp_path / 'moved'}").endswith(own)
    line = refused("dataset=folder", f"dataset.root={other}", "dataset.reader.test_fraction=null", *SHORT)
    assert "dataset: its train split is empty" in line
