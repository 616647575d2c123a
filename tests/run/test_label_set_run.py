"""Runs on images of several labels."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ONE_HEAD, Here, Refused
from PIL import Image
from runs import TWO, Ended, last, metrics, run_ranks, stop_at

import dml
from dml.__main__ import dispatch

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "gray": (90, 90, 90), "white": (255, 255, 255)}
SHORT = [*ONE_HEAD, "dataset=csv", "transform=emoji", "dataset.reader.separator='|'", "trainer.max_steps=2"]
SHORT += ["trainer.val_check_interval=2", "seed=1", "dataset.reader.val_fraction=0", "sampler.classes_per_batch=2"]
SHORT += ["evaluation.metrics=[recall,map@r,nmi,eer]", "sampler.images_per_class=2", "data.num_workers=0"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two colored halves, whose labels are the colors; training and test have other colors."""
    folder, lines = tmp_path_factory.mktemp("photos"), ["path,label,split"]
    rng = np.random.default_rng(0)
    for split, names in (("train", ["red", "green", "blue"]), ("test", ["gray", "white"])):
        for number in range(12):
            left, right = names[number % len(names)], names[(number // 2) % len(names)]
            pixels = np.repeat([[COLORS[left]] * 16 + [COLORS[right]] * 16], 32, axis=0)
            noisy = np.clip(pixels + rng.normal(0, 20, pixels.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"{split}{number}.png")
            lines.append(f"{split}{number}.png,{left}|{right},{split}")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder


def test_a_run_on_sets_of_labels(photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = [f"dataset.root={photos / 'list.csv'}"]
    options += ["evaluation.clustering=true", "evaluation.report={neighbors: 3, map: false, seed: 0}"]
    dispatch(["train", *SHORT, *options, f"hydra.run.dir={tmp_path / 'run'}"])
    printed = capfd.readouterr().out
    assert "evaluation.metrics: without nmi, as images of several labels have no true clusters" in printed
    found = metrics(tmp_path / "run")
    model = dml.load(tmp_path / "run", device="cpu")
    cells = [line.split(",")[:2] for line in (photos / "list.csv").read_text().split("\n") if line.endswith(",test")]
    vectors = model.embed([str(photos / path) for path, _ in cells])
    numbers = [[["gray", "white"].index(label) for label in cell.split("|")] for _, cell in cells]
    expected = dml.evaluate(vectors, np.array(numbers)[:, None], metrics=["recall", "map@r", "eer"])
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert "level0/nmi" not in found
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("loss", ["multi_similarity", "rll"])
def test_a_run_on_sets_of_labels_goes_on_bit_for_bit(photos: Path, tmp_path: Path, here: Here, loss: str) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    arguments = [*SHORT, f"dataset.root={photos / 'list.csv'}", f"loss={loss}"]
    here("train", *arguments, f"hydra.run.dir={whole}")
    code, _ = stop_at("after a step's metrics are logged", 1, signal.SIGTERM, *arguments, f"hydra.run.dir={stopped}")
    assert code == 128 + signal.SIGTERM
    here("train", f"resume={stopped}")
    expected, resumed = last(whole)["state_dict"], last(stopped)["state_dict"]
    assert all(torch.equal(weights, resumed[name]) for name, weights in expected.items())
    assert metrics(stopped) == metrics(whole)


@pytest.mark.distributed
def test_two_processes_train_and_test_on_sets_of_labels(photos: Path, tmp_path: Path, here: Here) -> None:
    arguments = [*SHORT, f"dataset.root={photos / 'list.csv'}", "loss=multi_similarity"]
    here("train", *arguments, f"hydra.run.dir={tmp_path / 'one'}")
    ended = run_ranks(tmp_path, *TWO, *arguments, f"hydra.run.dir={tmp_path / 'two'}")
    assert ended == [Ended(0, ""), Ended(0, "")]
    alone, together = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert "level0/map@r" in alone
    for name in ("level0/recall@1", "level0/map@r", "level0/eer"):
        assert together[name] == pytest.approx(alone[name], abs=1e-3), name


def test_what_needs_single_labels_is_refused_at_the_start(photos: Path, refused: Refused, tmp_path: Path) -> None:
    options = [*SHORT, f"dataset.root={photos / 'list.csv'}", f"hydra.run.dir={tmp_path / 'run'}"]
    assert "loss: SoftmaxLoss needs a single label of each image" in refused(*options, "loss=softmax")
    assert "loss: ClusterLoss needs a single label of each image" in refused(*options, "loss=happier")
    drawn = refused(*options, "dataset.reader.val_fraction=0.2")
    assert "dataset.reader.val_fraction=0.2: " in drawn
    assert not (tmp_path / "run" / "checkpoints").exists()
