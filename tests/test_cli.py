"""What a user gets wrong is one line on stderr and exit code 2."""

import zipfile
from pathlib import Path

import pytest
import torch
from conftest import ONE_HEAD, ROOT, SMALL, Here, Refused
from hydra.errors import MissingConfigException


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("loss=rl", "loss=rl: no such choice; nearest: rll"),
        ("losss=rll", "losss: no such key; nearest: loss"),
        ("loss.margn=0.2", "loss.margn: no such key; nearest: margin"),
        ("lr=0.1", "lr: no such key; is it optimizer.lr or optimizer.loss.lr?"),
        ("batch_size=8", "is it sampler.classes_per_batch and sampler.images_per_class?"),
        ("dataset.name=my photos (2026]", "dataset.name=my photos (2026]: Hydra can't read this value; a text with"),
        (str(ROOT / "tests"), f"{ROOT / 'tests'}: no KEY=VALUE, such as dataset.root=photos"),
        ("loss=[rll,nra]", "loss=[rll,nra]: must be the name of one choice; -m loss=A,B runs each of several in turn"),
        ("loss=rll,nra", "loss=rll,nra: must be the name of one choice; -m loss=A,B runs each"),
        ("model=efficientnet_b0", "no such choice; model=timm model.backbone.name=efficientnet_b0 takes timm's"),
        (f"dataset.root={ROOT / 'tests'}", "the default; dataset=folder reads a folder of images"),
        ("adapter=null", "adapter=null: must be the name of one choice"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(refused: Refused, override: str, expected: str) -> None:
    assert expected in refused(override)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["dataset.root=/nowhere"], "dataset.root=/nowhere"),
        (["sampler.classes_per_batch=500"], "sampler.classes_per_batch=500"),
        (["trainer.accelerator=mps"], "trainer: `MPSAccelerator` can not run on your system"),
        (["model.taps.L=pool9"], "model.taps.L=pool9: no such module; nearest: pool"),
        (["model.backbone.weights=/nowhere.pth"], "model.backbone.weights=/nowhere.pth"),
        (["trainer.max_epochs=2"], "trainer.max_steps=6 and trainer.max_epochs=2: a run has one length"),
        (["+trainer.fast_dev_run=true"], "trainer.fast_dev_run: dml sets it itself; trainer.max_steps=2"),
        (["+trainer.foo=1"], "trainer.foo: no such key"),
        (["evaluation.recall_at=[0]"], "error: evaluation.recall_at=0: must be a whole number, 1 or more"),
        (["evaluation.report={neighbors:5}"], "evaluation.report.map: no value; give evaluation.report.map=..."),
        (["evaluation.report={neighbors:5,map:true,sed:1}"], "evaluation.report.sed: no such key; nearest: seed"),
    ],
)
def test_bad_values_are_refused(
    refused: Refused, small_emoji: Path, tmp_path: Path, overrides: list[str], expected: str
) -> None:
    arguments = [f"dataset.root={small_emoji}", *SMALL, f"hydra.run.dir={tmp_path}", *overrides]
    assert expected in refused(*arguments)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["sampler.classes_per_batch=1"], "sampler.classes_per_batch=1: RankedListLoss compares images of different"),
        (["trainer.callbacks=[{_target_:nowhere.Mine}]"], "error: trainer.callbacks0: Error loading 'nowhere.Mine'"),
        (["scheduler.loss={attribute:marge,start:0,end:2}"], "scheduler.loss.attribute=marge: no number of"),
    ],
)
def test_what_cannot_be_built_is_told_before_the_raw_test(
    refused: Refused,
    small_emoji: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr("dml.run.jobs.evaluate_raw_features", lambda *_: pytest.fail("it was told too late"))
    assert expected in refused(f"dataset.root={small_emoji}", *SMALL, f"hydra.run.dir={tmp_path}", *overrides)


def corrupt(archive: Path, copy: Path) -> str:
    """Copies an archive with one of its images cut short -> the image's name."""
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(copy, "w") as target:
        image = next(name for name in source.namelist() if name.startswith("images/"))
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content[:40] if name == image else content)
    return image


def test_a_corrupt_image_is_named_or_skipped(refused: Refused, here: Here, small_emoji: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    image = corrupt(small_emoji, broken)
    arguments = [f"dataset.root={broken}", *ONE_HEAD, "data.num_workers=1"]
    # every image of the training classes is drawn in the first step
    arguments += ["sampler.classes_per_batch=16", "sampler.images_per_class=12"]
    arguments += ["trainer.max_steps=1", "trainer.val_check_interval=null"]
    line = refused(*arguments, f"hydra.run.dir={tmp_path / 'raise'}")
    assert f"image {broken}/{image}: cannot be decoded" in line

    here("train", *arguments, f"hydra.run.dir={tmp_path / 'skip'}", "data.on_corrupt=skip")
    assert (tmp_path / "skip" / "metrics.json").exists()


def test_divergence_names_the_step_and_keeps_the_last_checkpoint(
    refused: Refused, small_emoji: Path, tmp_path: Path
) -> None:
    arguments = [f"dataset.root={small_emoji}", *SMALL, f"hydra.run.dir={tmp_path}", "evaluation.raw=false"]
    # the schedule's one step takes the learning rate from 1e-4 to 1e26
    arguments += [
        "optimizer=sgd",
        "scheduler=step",
        "scheduler.schedule.step_size=4",
        "scheduler.schedule.gamma=1e30",
    ]
    line = refused(*arguments, "trainer.max_steps=12")
    assert line.startswith("error: step ")
    assert "NaN" in line
    kept = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert kept["global_step"] == 4
    assert all(weights.isfinite().all() for weights in kept["state_dict"].values())


@pytest.mark.parametrize(
    ("command", "argument", "expected"),
    [
        ("train", "resume=/nowhere", "resume=/nowhere: no run there"),
        ("evaluate", "checkpoint=/nowhere.ckpt", "checkpoint=/nowhere.ckpt: no such file"),
        ("evaluate", f"checkpoint={__file__}", "damaged"),
    ],
)
def test_what_is_not_a_run_is_refused(refused: Refused, command: str, argument: str, expected: str) -> None:
    assert expected in refused(argument, command=command)


def test_a_folder_stands_for_its_checkpoint(refused: Refused, tmp_path: Path) -> None:
    assert "neither a run with checkpoints" in refused(f"checkpoint={tmp_path}", command="evaluate")
    best = tmp_path / "checkpoints" / "best.ckpt"
    best.parent.mkdir()
    best.touch()
    for folder in (tmp_path, best.parent):
        for word in (f"checkpoint={folder}", str(folder)):
            assert f"checkpoint={best}: damaged" in refused(word, command="evaluate")


def test_a_sweep_cannot_be_resumed_as_a_run(refused: Refused) -> None:
    for sweep in ("-m", "--multi", "hydra.mode=MULTIRUN"):
        assert "without --multirun" in refused(sweep, "resume=/some/run", "seed=1,2")
    assert "--multirun, --cfg" in refused("-m", "--cfg", "job")


def test_a_bug_keeps_its_trace(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dml.run.jobs.train", broken)
    with pytest.raises(ZeroDivisionError):
        here("train")


def test_debug_shows_the_trace(here: Here) -> None:
    with pytest.raises(MissingConfigException):
        here("train", "loss=rl", "debug=true")
