"""The warning of crops that are much smaller than the resized image."""

import logging

import pytest
from configurations import CONF, compose
from omegaconf import OmegaConf

from dml.commands.crop_sizes import warn_of_small_crops
from dml.commands.training_checks import check_job

CROP = "torchvision.transforms.v2.CenterCrop"
TRANSFORMS = sorted(path.stem for path in (CONF / "transform").glob("*.yaml"))


def warned(caplog: pytest.LogCaptureFixture, *overrides: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_small_crops(compose(*overrides).transform)
    return caplog.messages


@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_file_warns_at_its_own_size(caplog: pytest.LogCaptureFixture, name: str) -> None:
    assert warned(caplog, f"transform={name}") == []


@pytest.mark.parametrize("size", [16, 64, 112, 384, 518])
def test_a_resize_that_follows_the_size_never_warns(caplog: pytest.LogCaptureFixture, size: int) -> None:
    assert warned(caplog, "transform=imagenet", f"transform.size={size}") == []
    assert warned(caplog, "transform=emoji", f"transform.size={size}") == []


def test_a_small_crop_warns_of_the_split_and_both_sizes(caplog: pytest.LogCaptureFixture) -> None:
    test = (
        "transform.test crops 127 of 256 pixels: most of each image is cut off; transform=imagenet resizes in "
        "proportion to transform.size"
    )
    assert warned(caplog, "transform=rll", "transform.size=128") == []
    assert warned(caplog, "transform=rll", "transform.size=127") == [test]  # the training scales what it crops
    both = [test.replace("transform.test", "transform.train"), test]
    assert warned(caplog, "transform=rll_plain", "transform.size=127") == both
    assert warned(caplog, "transform=nra", "transform.size=127") == both


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_trainings_and_tests_warn(caplog: pytest.LogCaptureFixture, command: str) -> None:
    check_job(command, compose("transform=rll", "transform.size=64"))
    assert ["transform.test crops 64 of 256" in message for message in caplog.messages] == [True]


def test_transforms_of_other_kinds_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    own = {"train": {"_target_": "own.Transform"}, "test": {"steps": [{"_target_": CROP, "size": [8, 8]}, {}]}}
    with caplog.at_level(logging.WARNING):
        warn_of_small_crops(OmegaConf.create(own))
        warn_of_small_crops(OmegaConf.create({"test": {"steps": [{"_target_": CROP, "size": 8}]}}))
    assert caplog.messages == []
