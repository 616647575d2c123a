"""Runs on images without labels: what they measure, how they resume, and what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Here, Refused
from PIL import Image

VIEWS = [
    *(value for value in SMALL if not value.startswith(("dataset", "sampler", "loss", "transform"))),
    *("sampler.classes_per_batch=4", "transform.size=32", "evaluation.report=null", "evaluation.sheet=null"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(24):
        Image.fromarray(generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    labeled = [f"{number:02}.png,{'owl' if number % 2 else 'robin'},test" for number in range(16, 24)]
    rows = ["path,label,split", *(f"{number:02}.png,,train" for number in range(16)), *labeled]
    (folder / "list.csv").write_text("\n".join(rows))
    return folder


def test_without_labels_nothing_is_measured(
    tmp_path: Path, here: Here, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here("train", "dataset=unlabeled", f"dataset.root={photos}", *VIEWS, f"hydra.run.dir={tmp_path / 'run'}")
    assert "nothing was measured, as no image for it has a label" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["selection"] == "last"
    assert not [name for name in metrics if "level0" in name]
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


def test_the_labels_that_there_are_test_it(tmp_path: Path, here: Here, photos: Path) -> None:
    run, words = tmp_path / "run", ["loss.loss.temperature=0.2", f"hydra.run.dir={tmp_path / 'run'}"]
    here("train", "dataset=unlabeled", f"dataset.root={photos / 'list.csv'}", *VIEWS, *words)
    metrics = json.loads((run / "metrics.json").read_text())
    assert "level0/recall@1" in metrics
    # on other data, with the loss that the data set of the training has chosen
    checkpoint = f"checkpoint={run / 'checkpoints' / 'last.ckpt'}"
    (photos / "tested.csv").write_text("path,label\n20.png,a\n21.png,a\n22.png,b\n23.png,b")
    other = ["dataset=csv", f"dataset.root={photos / 'tested.csv'}", "dataset.reader.test_fraction=null"]
    here("evaluate", checkpoint, *other, f"hydra.run.dir={tmp_path / 'test'}")
    assert "level0/recall@1" in json.loads((tmp_path / "test" / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["training.frozen=true"], "two views of an image would be the same"),
        (["dataset.folds=2"], "dataset.folds: needs the labels of training images"),
        (["sampler=image_balanced", "sampler.classes_per_batch=4"], "sampler.classes_per_batch=4: the training split"),
    ],
)
def test_what_needs_labels_says_so(tmp_path: Path, refused: Refused, photos: Path, words: list[str], line: str) -> None:
    plain = [value for value in VIEWS if not value.startswith("sampler")]
    assert line in refused("dataset=unlabeled", f"dataset.root={photos}", *plain, *words, f"hydra.run.dir={tmp_path}/r")


@pytest.mark.parametrize("command", ["audit", "inspect"])
def test_commands_that_need_labels_say_so(refused: Refused, photos: Path, command: str) -> None:
    line = refused("dataset=unlabeled", f"dataset.root={photos}", command=command)
    assert "training images without labels, which only dml train does without, and not in dataset=many" in line


def test_readers_of_labels_name_the_reader_without(refused: Refused, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\n1.png\n")
    for words in (
        ["dataset=folder", f"dataset.root={photos}"],
        ["dataset=csv", f"dataset.root={tmp_path / 'list.csv'}"],
    ):
        assert "dataset=unlabeled trains" in refused(*words)
