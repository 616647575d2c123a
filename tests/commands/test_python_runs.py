"""``dml.train``: the words of the shell from Python, with tables and objects in place of choices."""

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import Here
from torchvision.transforms import v2

import dml
from dml.data.readers import csv, emoji
from dml.losses.rll import RankedListLoss
from dml.run.given import giving, take_table
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.training.module import MetricLearner

pytestmark = pytest.mark.pipeline

SMALL = ["model=small_cnn", "model.heads=[H]", "model.embed_dim=8", "transform.size=16", "loss=rll"]
SMALL += ["sampler.classes_per_batch=4", "sampler.images_per_class=2", "trainer.max_steps=2"]
SMALL += ["trainer.val_check_interval=null", "data.num_workers=0", "evaluation.raw=false"]
SMALL += [f"evaluation.{name}" for name in ("clustering=false", "report=null", "sheet=null", "threshold=null")]


class Frame(NamedTuple):
    """As much of a pandas DataFrame as `ImageTable.from_frame` reads; pandas is no dependency."""

    columns: list[str]
    values: dict[str, list[Any]]

    def __getitem__(self, column: Any) -> Any:
        return self.values[column]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))


@pytest.fixture(scope="module")
def words(small_emoji: Path) -> list[str]:
    """The overrides of a training on a part of the embedded data set."""
    return [*SMALL, "dataset=emoji", f"dataset.root={small_emoji}", "dataset.counts=null"]


@pytest.fixture(scope="module")
def run(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> dml.Run:
    return dml.train(words, folder=tmp_path_factory.mktemp("python") / "run", quiet=True)


def test_it_is_the_run_of_the_shell(run: dml.Run, words: list[str], here: Here, tmp_path: Path) -> None:
    here("train", *words, f"hydra.run.dir={tmp_path / 'run'}")
    assert run.metrics == RunFolder(tmp_path / "run").metrics()
    assert run.load().dimension == 8
    assert "level0/recall@1" in run._repr_html_()
    assert "queries_without" not in run._repr_html_()
    with pytest.raises(InputError, match=r"report\.html: not there"):
        run.report()


def test_an_object_trains_as_its_choice_does(run: dml.Run, words: list[str], tmp_path: Path) -> None:
    own = dml.train(words, objects={"loss": RankedListLoss()}, folder=tmp_path / "own", quiet=True)
    assert own.metrics["level0/map@r"] == run.metrics["level0/map@r"]
    with pytest.raises(InputError, match="trained with a RankedListLoss from Python"):
        dml.train([f"resume={own.folder}", "trainer.max_steps=3"], quiet=True)
    assert own.resume(["trainer.max_steps=3"], quiet=True).metrics["step"] == 3


def test_a_table_trains_as_its_data_set_does(small_emoji: Path, tmp_path: Path) -> None:
    table = emoji.read(small_emoji)
    frame: Any = Frame(
        ["path", "level0", "level1", "level2", "split"],
        {"path": table.paths.tolist(), "split": table.split.tolist()}
        | {
            f"level{level}": [names[label] for label in table.labels[:, level]]
            for level, names in enumerate(table.names)
        },
    )
    own = dml.train(
        [*SMALL, "transform=emoji", "transform.size=16"],
        table=dml.ImageTable.from_frame(frame),
        folder=tmp_path / "own",
    )
    assert own.metrics["level0/recall@1"] > 0
    assert own.metrics["split"] == "test"
    del frame.values["level0"], frame.columns[1]
    with pytest.raises(InputError, match="no column 'path'"):
        dml.ImageTable.from_frame(Frame(["label"], {"label": ["a"]}))


def test_a_table_without_splits_has_those_of_a_csv_file(small_emoji: Path, tmp_path: Path) -> None:
    table = emoji.read(small_emoji)
    cells = {"path": table.paths.tolist(), "label": [table.name_class(label) for label in table.labels[:, 0]]}
    rows = zip(*cells.values(), strict=True)
    (tmp_path / "mine.csv").write_text("".join(f"{path},{label}\n" for path, label in [("path", "label"), *rows]))
    frame: Any = Frame(["path", "label"], cells)
    fractions: Any = {"test_fraction": 0.5, "val_fraction": 0.2, "seed": 0}
    with giving({"table": dml.ImageTable.from_frame(frame)}):
        taken = take_table(None, **fractions)
    listed = csv.read(tmp_path / "mine.csv", **fractions)
    assert dict(zip(taken.paths, taken.split, strict=True)) == dict(zip(listed.paths, listed.split, strict=True))
    assert {*taken.split.tolist()} >= {"train", "val", "test"}


def test_ctrl_c_returns_the_run_which_goes_on(
    run: dml.Run,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    step = MetricLearner.training_step

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    monkeypatch.setattr(MetricLearner, "training_step", interrupted)
    stopped = dml.train(words, folder=tmp_path / "run", quiet=True)
    assert not stopped.metrics
    assert "run.resume()" in stopped._repr_html_()
    assert "resume=" in capfd.readouterr().err
    assert stopped.resume(quiet=True).metrics == run.metrics


def test_mistakes_are_exceptions_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="loss=rl: no such choice; nearest: rll"):
        dml.train(["loss=rl"], quiet=True)
    with pytest.raises(InputError, match=r"transforms.*one of loss, sampler"):
        dml.train(objects={"transforms": None})
    assert not (tmp_path / "run").exists()


def test_transforms_of_ones_own_train_and_are_used_by_the_model(words: list[str], tmp_path: Path) -> None:
    transforms = {"transform.train": v2.Resize((16, 16)), "transform.test": v2.Resize((16, 16), antialias=False)}
    run = dml.train(words, objects=transforms, folder=tmp_path / "run", quiet=True)
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    model = run.load(device="cpu")
    assert torch.equal(model.preprocess(image), transforms["transform.test"](torch.from_numpy(image).permute(2, 0, 1)))
    with pytest.raises(InputError, match=r"transform.test: the run was trained with a Resize from Python"):
        dml.load(run.folder)


def test_a_notebook_shows_the_report(tmp_path: Path) -> None:
    RunFolder(tmp_path).report_file.write_text('<p class="a">é</p>', encoding="utf-8")
    path = dml.Run(tmp_path).report()
    assert path.read_text(encoding="utf-8") == '<p class="a">é</p>'
    assert 'srcdoc="&lt;p class=&quot;a&quot;&gt;é&lt;/p&gt;"' in path._repr_html_()  # type: ignore[attr-defined]
