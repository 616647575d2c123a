"""Boxes in a whole run: a list of boxes gives what a list of the cropped files gives."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ONE_HEAD
from PIL import Image
from runs import metrics

import dml
from dml.__main__ import dispatch

pytestmark = pytest.mark.pipeline

RUN = [*ONE_HEAD, "dataset=csv", "transform=emoji", "trainer.max_steps=2", "trainer.val_check_interval=2"]
SPLITS = ("train",) * 6 + ("val",) * 2 + ("test",) * 4  # of each class
HEADER = "path,label,split"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The list of boxes in scenes, two in each scene for training and one for the test, and that of their crops."""
    folder, rng = tmp_path_factory.mktemp("scenes"), np.random.default_rng(0)
    boxes, crops = [f"{HEADER},x_1,y_1,x_2,y_2"], [HEADER]
    for number in range(4 * len(SPLITS)):
        scene = Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8))
        scene.save(folder / f"{number}.png")
        label = number % len(SPLITS)
        split = SPLITS[label]
        for place in range(2 if split == "train" else 1):
            left, top = rng.integers(0, 40, 2).tolist()
            edges = (left, top, left + 50 - 9 * place, top + 30)
            scene.crop(edges).save(folder / f"{number}_{place}.png")
            boxes.append(f"{number}.png,{label},{split},{','.join(map(str, edges))}")
            crops.append(f"{number}_{place}.png,{label},{split}")
    for name, lines in (("boxes.csv", boxes), ("crops.csv", crops)):
        (folder / name).write_text("\n".join(lines))
    return folder / "boxes.csv", folder / "crops.csv"


def train(data: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    dispatch(["train", *RUN, f"dataset.root={data}", f"hydra.run.dir={folder}", *arguments])
    return read_metrics(folder)


def read_metrics(folder: Path) -> dict[str, Any]:
    return {name: value for name, value in metrics(folder).items() if name.startswith("level0/")}


@pytest.fixture(scope="module")
def on_boxes(lists: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the list of boxes."""
    folder = tmp_path_factory.mktemp("runs") / "boxes"
    assert train(lists[0], folder)
    return folder


def test_a_run_on_boxes_is_one_on_crops(lists: tuple[Path, Path], on_boxes: Path, tmp_path: Path) -> None:
    assert read_metrics(on_boxes) == train(lists[1], tmp_path)
    assert_same_model(lists, on_boxes, tmp_path)


def test_a_run_on_features_of_boxes_is_one_on_those_of_crops(lists: tuple[Path, Path], tmp_path: Path) -> None:
    folders = tmp_path / "boxes", tmp_path / "crops"
    found, expected = (train(data, folder, "training.frozen=true") for data, folder in zip(lists, folders, strict=True))
    assert found == expected
    assert_same_model(lists, *folders)


def assert_same_model(lists: tuple[Path, Path], *runs: Path) -> None:
    models = [dml.load(run, device="cpu") for run in runs]
    for ours, theirs in zip(*(model.model.state_dict().values() for model in models), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    vectors = [model.embed(data) for model, data in zip(models, lists, strict=True)]
    np.testing.assert_array_equal(*vectors)


def test_prepared_boxes_are_those_of_the_files(
    lists: tuple[Path, Path], on_boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crops are cached."""
    data = tmp_path / "scenes"
    shutil.copytree(lists[0].parent, data)
    size, root = dml.load(on_boxes).settings.build_transform().resize.size, f"dataset.root={data / 'boxes.csv'}"
    dispatch(["prepare", "dataset=csv", root, f"resize={size}", "mode=warp", "sheet=null"])
    for path in data.glob("*.png"):
        path.write_bytes(bytes(path.stat().st_size))  # what is read of the files is damaged now, which nobody may see
    monkeypatch.setattr("dml.data.prepared.cache.find_changed", lambda paths, files: np.zeros(len(paths)))
    assert read_metrics(on_boxes) == train(data / "boxes.csv", tmp_path / "cached", "data.check_images=0")
