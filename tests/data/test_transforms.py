import math
from pathlib import Path
from typing import Any

import pytest
import torch
from configurations import CONF, compose
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torchvision.transforms import v2

from dml.data.contents import Box
from dml.data.images import ImageFile
from dml.data.transforms import Pad, Pipeline, RandomResizedCrop, Resize, stack
from dml.runtime.errors import InputError

PHOTO = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
SIZES = [(60, 47), (47, 60), (50, 50), (1, 1), (3, 200), (200, 2), (31, 30)]


def photo(height: int, width: int) -> Tensor:
    return v2.functional.resize(PHOTO, [height, width], antialias=True)


# resize


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("to", [2, 32, 47, 100])
def test_resize_is_torchvisions(size: tuple[int, int], to: int) -> None:
    image = photo(*size)
    expected = {
        "warp": v2.Resize((to, to), antialias=True)(image),
        "shorter": v2.Resize(to, antialias=True)(image),
    }
    for mode, there in expected.items():
        assert torch.equal(Resize(mode, to)(image), there)
        assert torch.equal(Resize(mode, to)(image.contiguous()), there), "the layout in memory doesn't matter"


@pytest.mark.parametrize("size", SIZES)
def test_bicubic_is_torchvisions(size: tuple[int, int]) -> None:
    image, mode = photo(*size), v2.InterpolationMode.BICUBIC
    resize = Resize("warp", 32, "bicubic")
    assert torch.equal(resize(image), v2.Resize((32, 32), mode, antialias=True)(image))
    assert Pipeline([resize]).resize is None, "the cache holds bilinear images"
    own, reference = RandomResizedCrop(16, interpolation="bicubic"), v2.RandomResizedCrop(16, interpolation=mode)
    torch.manual_seed(0)
    expected = reference(image)
    torch.manual_seed(0)
    assert torch.equal(own(image), expected)


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), size=st.integers(1, 600))
def test_shapes(height: int, width: int, size: int) -> None:
    assert Resize("warp", size).shape(height, width) == (size, size)
    for mode, side in (("shorter", min), ("longer", max)):
        made = Resize(mode, size).shape(height, width)
        assert made[0 if height == side(height, width) else 1] == size
        other = size * max(height, width) / min(height, width)
        if mode == "longer":
            other = max(1, size * min(height, width) / max(height, width))
        assert made[0 if height != side(height, width) else 1] == math.floor(other)


def test_an_image_of_the_size_is_not_copied() -> None:
    image = photo(20, 30)
    assert torch.equal(Resize("shorter", 20)(image), image)
    assert Resize("shorter", 20)(image).data_ptr() == image.data_ptr()


# random resized crop


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.16, 1.0), (0.75, 1.33)), ((0.9, 1.0), (1.9, 2.0))]
)
def test_random_resized_crop_is_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    """The same draws, and of them the same pixels."""
    image = photo(*size)
    own, reference = RandomResizedCrop(16, scale, ratio), v2.RandomResizedCrop(16, scale, ratio, antialias=True)
    for seed in range(10):
        torch.manual_seed(seed)
        expected = reference(image)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        assert torch.equal(own(image), expected)
        assert torch.equal(torch.get_rng_state(), state)


# pad


@pytest.mark.parametrize(
    ("size", "padded", "corner"),
    [((4, 6), (6, 6), (1, 0)), ((5, 2), (6, 6), (0, 2)), ((1, 1), (6, 6), (2, 2)), ((9, 3), (9, 6), (0, 1))],
)
def test_pad(size: tuple[int, int], padded: tuple[int, int], corner: tuple[int, int]) -> None:
    image = photo(*size)
    made = Pad(6, fill=7)(image)
    (height, width), (top, left) = size, corner
    expected = torch.full((3, *padded), 7, dtype=torch.uint8)
    expected[:, top : top + height, left : left + width] = image
    assert made.dtype == torch.uint8
    assert made.tolist() == expected.tolist()
    assert Pad(6, fill=7)(image.contiguous()).tolist() == expected.tolist()


def test_pad_leaves_what_is_large_enough() -> None:
    image = photo(6, 7)
    assert Pad(6)(image) is image


# files


@pytest.fixture(params=["PNG", "JPEG"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> ImageFile:
    """A photograph of 300 x 400."""
    Image.fromarray(photo(300, 400).permute(1, 2, 0).numpy()).save(tmp_path / "image", request.param, quality=95)
    return ImageFile(f"{tmp_path}/image")


STEPS: list[Any] = [
    Resize("warp", 200),
    Resize("shorter", 160),
    Resize("longer", 256),
    RandomResizedCrop(140, (0.1, 1.0)),
]


@pytest.mark.parametrize("step", STEPS)
def test_of_a_file_no_larger_than_twice_the_size_every_pixel_is_read(file: ImageFile, step: Any) -> None:
    whole = file.pixels()
    for seed in range(5):
        torch.manual_seed(seed)
        from_file = Pipeline([step])(file)
        torch.manual_seed(seed)
        assert torch.equal(from_file, Pipeline([step])(whole))


class Spy(ImageFile):
    """A file that notes how large it was asked for."""

    asked: tuple[int, int] | None = None

    def pixels(self, box: Box | None = None, at_least: tuple[int, int] | None = None) -> Tensor:
        self.asked = at_least
        return super().pixels(box, at_least)


@pytest.mark.parametrize(
    "step", [Resize("warp", 37), Resize("longer", 50), Resize("shorter", 75), RandomResizedCrop(30, (0.9, 1.0))]
)
def test_a_larger_file_is_reduced_first(file: ImageFile, step: Any) -> None:
    """Within 1 to 2 of 255 of what the whole image gives, in the mean."""
    spy = Spy(file.path)
    torch.manual_seed(0)
    made = step(spy)
    assert spy.asked == (2 * made.shape[1], 2 * made.shape[2])
    torch.manual_seed(0)
    assert (made.float() - step(file.pixels()).float()).abs().mean() < 2.5


@pytest.mark.parametrize("first", [v2.Resize((20, 20), antialias=True), Pad(500), lambda image: image[:, :3]])
def test_any_other_first_step_gets_the_pixels(file: ImageFile, first: Any) -> None:
    pipeline = Pipeline([first, lambda image: image + 1])
    assert torch.equal(pipeline(file), first(file.pixels()) + 1)
    assert pipeline.resize is None


def test_without_steps_the_image_stays_as_it_is(file: ImageFile) -> None:
    assert torch.equal(Pipeline([])(file), file.pixels())
    assert Pipeline([]).resize is None


def test_the_rest_follows_on_the_first_step() -> None:
    image, resize = photo(30, 40), Resize("shorter", 20)
    pipeline = Pipeline([resize, RandomResizedCrop(8), v2.RandomHorizontalFlip()])
    assert pipeline.resize is resize
    torch.manual_seed(0)
    whole = pipeline(image)
    torch.manual_seed(0)
    assert torch.equal(pipeline.rest(resize(image)), whole)


# errors


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Resize("both", 5), "resize mode=both: must be one of warp, shorter, longer"),
        (lambda: Resize("warp", 8, "cubic"), "interpolation=cubic: must be bilinear or bicubic"),  # type: ignore[arg-type]
        (lambda: Resize("warp", 0), "resize size=0: must be a whole number, 1 or more"),
        (lambda: Resize("warp", "abc"), "resize size='abc': must be a whole number, 1 or more"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop(-3), "crop size=-3: must be a whole number, 1 or more"),
        (lambda: RandomResizedCrop(8, (0.5, 0.4)), r"crop scale=\[0.5, 0.4\]: expected two numbers"),
        (lambda: RandomResizedCrop(8, (0.5,)), r"crop scale=\[0.5\]: expected two numbers"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), r"crop ratio=\[0, 1\]: expected two numbers"),
        (lambda: Pad(0), "pad size=0: must be a whole number, 1 or more"),
    ],
)
def test_errors(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


# the papers' transforms


def configured(choice: str, *overrides: str) -> tuple[Pipeline, Pipeline]:
    config = compose(f"transform={choice}", *overrides).transform
    return instantiate(config.train), instantiate(config.test)


FLIP = v2.RandomHorizontalFlip(0.5)
WARP = v2.Resize((256, 256), antialias=True)
CENTER = v2.CenterCrop(224)


def crop(size: int, *scale: float, ratio: tuple[float, float] = (3 / 4, 4 / 3)) -> v2.Transform:
    return v2.RandomResizedCrop(size, scale, ratio, antialias=True)


def longer(image: Tensor) -> Tensor:
    """The longer side to 256, and a gray border where a side is under 224."""
    scaled = v2.Resize(None, max_size=256, antialias=True)(image)
    missing = [max(0, 224 - side) for side in (scaled.shape[2], scaled.shape[1])]
    left, top = (side // 2 for side in missing)
    return v2.functional.pad(scaled, [left, top, missing[0] - left, missing[1] - top], fill=128)


HAPPIER = {"ratio": (0.75, 1.33)}
PAPERS = {
    "rll": ([WARP, crop(224, 0.5, 1.0), FLIP], [WARP, CENTER]),
    "imagenet": ([WARP, crop(224, 0.5, 1.0), FLIP], [WARP, CENTER]),
    "rll_release": ([WARP, crop(227, 0.5, 1.0), FLIP], [WARP, v2.CenterCrop(227)]),
    "rll_plain": ([WARP, v2.RandomCrop(224), FLIP], [WARP, CENTER]),
    "lns": ([WARP, v2.RandomCrop(224), FLIP], [WARP, CENTER]),
    "nra": ([longer, v2.RandomCrop(224), FLIP], [longer, CENTER]),
    "happier_sop": ([v2.Resize(256, antialias=True), crop(224, 0.16, 1.0, **HAPPIER), FLIP], [WARP, CENTER]),
    "happier_inat": ([crop(224, 0.16, 1.0, **HAPPIER), FLIP], [v2.Resize(256, antialias=True), CENTER]),
    "happier_dyml": ([crop(224, 0.16, 1.0, **HAPPIER), FLIP], [v2.Resize(256, antialias=True), CENTER]),
    "emoji": (
        [
            v2.Resize((64, 64), antialias=True),
            v2.RandomAffine(10, (0.06, 0.06), (0.9, 1.1), fill=255, interpolation=v2.InterpolationMode.BILINEAR),
            FLIP,
        ],
        [v2.Resize((64, 64), antialias=True)],
    ),
}
"""Each choice as torchvision's own steps, from the papers: training, test."""


def test_every_choice_is_of_some_paper() -> None:
    assert {path.stem for path in (CONF / "transform").glob("*.yaml")} == set(PAPERS)


@pytest.mark.parametrize("choice", PAPERS)
def test_a_papers_transform(choice: str) -> None:
    for pipeline, steps in zip(configured(choice), PAPERS[choice], strict=True):
        for size in ((375, 500), (500, 333), (64, 64), (30, 290), (1, 1)):
            image = photo(*size)
            for seed in range(2):
                torch.manual_seed(seed)
                made = pipeline(image)
                torch.manual_seed(seed)
                assert torch.equal(made, Pipeline(steps)(image))


@pytest.mark.parametrize(
    ("model", "expected"), [("resnet50", "bilinear"), ("dinov2_small", "bicubic"), ("siglip2_base", "bicubic")]
)
def test_images_are_scaled_as_the_weights_were_trained(model: str, expected: str) -> None:
    for pipeline in configured("imagenet", f"model={model}"):
        steps = [step for step in pipeline.steps if isinstance(step, Resize | RandomResizedCrop)]
        assert {step.interpolation for step in steps} == {expected}


@pytest.mark.parametrize("choice", PAPERS)
def test_the_size_is_a_setting(choice: str) -> None:
    for pipeline in configured(choice, "transform.size=32"):
        assert pipeline(photo(70, 40)).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("choice", "train", "test"),
    [
        ("rll", ("warp", 256), ("warp", 256)),
        ("rll_plain", ("warp", 256), ("warp", 256)),
        ("nra", ("longer", 256), ("longer", 256)),
        ("happier_sop", ("shorter", 256), ("warp", 256)),
        ("happier_inat", None, ("shorter", 256)),
    ],
)
def test_what_a_cache_can_hold(choice: str, train: Any, test: Any) -> None:
    for pipeline, expected in zip(configured(choice), (train, test), strict=True):
        resize = pipeline.resize
        assert (resize and (resize.mode, resize.size)) == expected


def test_images_of_different_sizes_are_refused() -> None:
    images = [torch.zeros(3, *size, dtype=torch.uint8) for size in ((8, 8), (8, 9))]
    with pytest.raises(InputError, match="gives images of 8 x 8 and 9 x 8 pixels; let it end with a crop"):
        stack(images)
