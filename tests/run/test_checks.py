"""What a configuration may hold, checked before a job reads anything."""

import logging
import sys

import pytest
from configurations import CONF, compose, settings_of
from omegaconf import OmegaConf

from dml.run.checks import check_crops, check_values
from dml.run.settings import SETTINGS
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError

WRONG = {
    "loss.margin=abc": "loss.margin=abc: must be a valid number",
    "loss.margin=nan": "loss.margin=nan: must be a finite number",
    "loss.margin=[1,2]": r"loss.margin=\[1,2\]: must be a valid number",
    "trainer.precision=fp16": "trainer.precision=fp16: must be .*16-mixed",
    "sampler.images_per_class=2.5": "sampler.images_per_class=2.5: must be a valid integer",
    "seed=true": "seed=true: must be a valid integer",
    "seed=0.5": "seed=0.5: must be a valid integer",
    "seed=4294967296": "seed=4294967296: must be less than 4294967296",
    "transform.size=big": "transform.size=big: must be a valid integer",
    "data.on_corrupt=skp": "data.on_corrupt=skp: must be 'raise' or 'skip'",
    "dataset.queries_in_gallery=no_copies": "dataset.queries_in_gallery=no_copies: must be a valid boolean",
    "scheduler.warmup_steps=null": "scheduler.warmup_steps=null: must be a valid integer",
    "optimizer.lr=[null,true]": r"optimizer.lr=\[null,true\]: must be a valid number",
    "training.ema=1": "training.ema=1: must be less than 1",
    "training.bank_every_n_steps=0": "training.bank_every_n_steps=0: must be greater than or equal to 1",
    "evaluation.crops=3": "evaluation.crops=3: must be 1, 2, 5 or 10",
    "scheduler.loss=abc": "scheduler.loss=abc: must be a valid dictionary",
    "scheduler.warmup_epochs=nan": "scheduler.warmup_epochs=nan: must be .*number",
    "evaluation.recall_at=5": "evaluation.recall_at=5: must be a valid list",
    "evaluation.validation_metrics=nmi": "evaluation.validation_metrics=nmi: must be a valid list or 'auto'",
    "data.num_workers=many": "data.num_workers=many: must be a valid integer or 'auto'",
    "data=null": "data=null: must be a valid dictionary",
    "data.workers=2": "data.workers: no such key; nearest: num_workers",
    "loss.marge=2": "loss.marge: no such key; nearest: margin",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_value_that_a_key_cannot_take(override: str):
    with pytest.raises(InputError, match=f"^{WRONG[override]}"):
        check_values("train", compose("dataset=folder", f"++{override}"))


@pytest.mark.parametrize(
    ("command", "override", "line"),
    [
        ("prepare", "sheet.pictures=-1", "sheet.pictures=-1: must be greater than or equal to 1"),
        ("prepare", "verify=true", "verify=true: must be 'stamp' or 'content'"),
        ("prepare", "resize=abc", "resize=abc: must be a valid integer"),
        ("prepare", "processes=2.5", "processes=2.5: must be a valid integer"),
        ("inspect", "processes=x", "processes=x: must be a valid integer"),
        ("inspect", "components=0", "components=0: must be greater than or equal to 1"),
    ],
)
def test_keys_of_a_command_alone_are_checked(command: str, override: str, line: str):
    with pytest.raises(InputError, match=f"^{line}$"):
        check_values(command, compose(override, command=command))


def test_a_whole_number_may_be_written_as_1e3():
    config = compose("dataset=folder", "trainer.max_steps=1e3", "seed=1e1")
    config.trainer.limit_val_batches, config.loss.margin, changes = 1.0, 1.0, OmegaConf.create({"seed": 10.0})
    check_values("train", config, changes)
    assert [repr(value) for value in (config.trainer.max_steps, config.seed, changes.seed)] == ["1000", "10", "10"]
    assert isinstance(config.trainer.limit_val_batches, float)  # a share
    assert isinstance(config.loss.margin, float)


def test_every_whole_number_may_be_written_with_a_point():
    config = compose("dataset=folder", "trainer.max_epochs=3")
    whole = {key for key, value in flat(OmegaConf.to_container(config, resolve=False)).items() if type(value) is int}
    for key in whole:
        OmegaConf.update(config, key, float(OmegaConf.select(config, key)))
    check_values("train", config)
    values = {key: OmegaConf.select(config, key) for key in whole}
    assert {key for key, value in values.items() if isinstance(value, float) and value > 1} == {
        "checkpoints.every_n_seconds"
    }


@pytest.mark.parametrize(
    "override",
    [
        "trainer.precision=16",
        "trainer.precision=bf16-mixed",
        "trainer.devices=2",
        "optimizer.lr=1",
        "training.ema=0.99",
    ],
)
def test_what_a_parameter_takes_passes(override: str):
    check_values("train", compose("dataset=folder", override))


@pytest.mark.parametrize("command", SETTINGS)
def test_every_key_of_a_command_is_declared(command: str):
    given = ["checkpoint=a.ckpt"] if command == "evaluate" else []
    check_values(command, compose("dataset=folder", *given, command=command))


PML = "pytorch_metric_learning.losses.TripletMarginLoss"


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        ({"_target_": PML, "margin": "x"}, r"loss\.margin=x: must be a valid number"),  # not annotated
        ({"_target_": PML, "margin": [1]}, r"loss\.margin=\[1\]: must be a valid number"),
        ({"_target_": "dml.losses.csl.CSLLoss", "margins": 0.3}, r"loss\.margins=0\.3: must be a valid list"),
        ({"terms": [{"_target_": PML, "margin": "x"}]}, r"loss\.terms\[0\]\.margin=x: must be a valid number"),
    ],
)
def test_parameters_of_any_object_are_checked(loss: dict[str, object], line: str):
    config = compose()
    config.loss = {"_target_": "builtins.dict", **loss}
    with pytest.raises(InputError, match=f"^{line}$"):
        check_values("train", config)


@pytest.mark.parametrize(
    ("part", "node"),
    [
        ("loss", {"_target_": PML, "margin": 1}),
        ("loss", {"_target_": PML, "margin": {"_target_": "builtins.float"}}),
        ("loss", {"_target_": "dml.losses.csl.CSLLoss", "margins": [0.3]}),
        ("loss", {"_target_": "dml.losses.nowhere.Loss", "margin": "x"}),  # building it tells what is wrong
        ("transform.train", {"_target_": "torchvision.transforms.v2.RandomErasing", "value": [0, 0, 0]}),
        ("transform.train", {"_target_": "torchvision.transforms.v2.ColorJitter", "brightness": [0.5, 1.5]}),
    ],
)
def test_what_an_object_may_take_passes(part: str, node: dict[str, object]):
    config = compose()
    OmegaConf.update(config, part, node, merge=False)
    check_values("train", config)


def test_a_test_and_a_preparation_import_only_what_they_build(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("foreign_loss", "foreign_model"):
        (tmp_path / f"{name}.py").write_text("def make(): ...\n")
    given = ["loss._target_=foreign_loss.make", "model._target_=foreign_model.make"]

    def imported() -> set[str]:
        return {"foreign_loss", "foreign_model"} & sys.modules.keys()

    check_values("prepare", compose(*given, command="prepare"))
    assert imported() == set()
    with pytest.raises(InputError, match="no such key"):  # of the function without parameters
        check_values("evaluate", compose(*given, "checkpoint=a.ckpt", command="evaluate"))
    assert imported() == {"foreign_model"}
    with pytest.raises(InputError, match="no such key"):
        check_values("train", compose(*given))
    assert imported() == {"foreign_loss", "foreign_model"}


def warned(caplog: pytest.LogCaptureFixture, *overrides: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_crops(settings_of(compose(*overrides)))
    return caplog.messages


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "transform").glob("*.yaml")))
def test_no_crop_warns_at_the_size_of_its_file(caplog: pytest.LogCaptureFixture, name: str) -> None:
    assert warned(caplog, f"transform={name}") == []


@pytest.mark.parametrize("size", [16, 112, 518])
def test_a_resize_that_follows_the_size_never_warns(caplog: pytest.LogCaptureFixture, size: int) -> None:
    assert warned(caplog, "transform=imagenet", f"transform.size={size}") == []
    assert warned(caplog, "transform=nra", f"transform.size={max(size, 128)}") == []  # it pads a small image


def test_a_small_crop_warns_of_the_split_and_both_sizes(caplog: pytest.LogCaptureFixture) -> None:
    line = "crops 127 of 256 pixels: most of each image is cut off"
    assert warned(caplog, "transform=rll", "transform.size=128") == []
    (message,) = warned(caplog, "transform=rll", "transform.size=127")  # the training scales what it crops
    assert f"transform.test {line}" in message
    both = warned(caplog, "transform=rll_plain", "transform.size=127")
    assert [message.partition(":")[0] for message in both] == [
        f"transform.{split} crops 127 of 256 pixels" for split in ("train", "test")
    ]


@pytest.mark.parametrize(
    ("name", "split", "size", "resized"),
    [("rll", "test", 336, 256), ("happier_inat", "test", 384, 256), ("lns", "train", 300, 256)],
)
def test_a_crop_that_the_image_does_not_fill_is_refused(name: str, split: str, size: int, resized: int) -> None:
    check_crops(settings_of(compose(f"transform={name}", f"transform.size={resized}")))
    line = f"transform.{split} crops {size} of {resized} pixels, and frames each image in black"
    with pytest.raises(InputError, match=line):
        check_crops(settings_of(compose(f"transform={name}", f"transform.size={size}")))
