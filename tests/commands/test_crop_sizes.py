"""Crops that are larger than the resized image are refused, and much smaller ones are warned of."""

import logging

import pytest
from configurations import CONF, compose

from dml.commands.training_checks import check_crops
from dml.runtime.errors import InputError

TRANSFORMS = sorted(path.stem for path in (CONF / "transform").glob("*.yaml"))


def warned(caplog: pytest.LogCaptureFixture, *overrides: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_crops(compose(*overrides).transform)
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


@pytest.mark.parametrize(
    ("name", "split", "size", "resized"),
    [("rll", "test", 336, 256), ("happier_inat", "test", 384, 256), ("lns", "train", 300, 256)],
)
def test_a_crop_that_the_image_does_not_fill_is_refused(
    caplog: pytest.LogCaptureFixture, name: str, split: str, size: int, resized: int
) -> None:
    check_crops(compose(f"transform={name}", f"transform.size={resized}").transform)
    line = f"transform.{split} crops {size} of {resized} pixels, and frames each image in black"
    transform = compose(f"transform={name}", f"transform.size={size}").transform
    with pytest.raises(InputError, match=line):
        check_crops(transform)
    with caplog.at_level(logging.WARNING):
        check_crops(transform, is_trained=True)
    assert caplog.messages[0].startswith(line)


def test_a_padded_image_is_large_enough() -> None:
    check_crops(compose("transform=nra", "transform.size=384").transform)
