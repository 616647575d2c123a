"""Transforms of images, (3, H, W) uint8 -> (3, h, w) uint8, for configurations; torchvision's can be used as well.

A transform that begins with `Resize` or `RandomResizedCrop` decodes an image file no larger than necessary. One that
begins with `Resize` doesn't read the file at all if a cache holds the resized image. They aren't dataclasses, which
OmegaConf would convert to dictionaries.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from dml.data.contents import Box
from dml.data.images import ImageFile
from dml.runtime.configuration import naming
from dml.runtime.errors import InputError, check_choice, check_number, check_whole

Interpolation = Literal["bilinear", "bicubic"]
"""How images are scaled: as the weights of a network were trained, which for most transformers is bicubic."""

REDUCING_GAP = 2
"""Smallest factor by which a JPEG that is decoded at a reduced size must exceed the height and width of the result.

The value is that of Pillow's `Image.thumbnail`. The pixels then differ by 1 to 2 of 255 in the mean, as much as when a
JPEG is saved again.
"""


class Resize:
    """A transform that scales an image like torchvision, with antialiasing.

    "warp" scales to ``size`` x ``size``; "shorter" and "longer" scale the shorter or the longer side to ``size``, keep
    the proportions, and round the other side down.
    """

    def __init__(self, mode: str, size: int, interpolation: Interpolation = "bilinear") -> None:
        check_choice("resize mode", mode, ("warp", "shorter", "longer"))
        check_whole("resize size", size, least=1)
        check_choice("transform.interpolation", interpolation, get_args(Interpolation))
        self.mode = mode
        self.size = size
        self.interpolation = interpolation

    def __call__(self, image: Tensor | ImageFile) -> Tensor:
        """Scale an image (3, H, W), or that of a file, to (3, h, w)."""
        height, width = _read_size(image)
        shape = self.shape(height, width)
        if isinstance(image, ImageFile):
            image.check_resized(shape)
        return _scale(_read_part(image, Box(0, 0, height, width), shape), shape, self.interpolation)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image of ``height`` x ``width`` is scaled."""
        if self.mode == "warp":
            return self.size, self.size
        side = min(height, width) if self.mode == "shorter" else max(height, width)
        return max(1, self.size * height // side), max(1, self.size * width // side)


class RandomResizedCrop:
    """A transform that scales a random part of an image to ``size`` x ``size``, like torchvision's of the same name.

    It draws the same parts as torchvision and gives the same pixels. The part is drawn in the coordinates of the image
    at its full size, before the image is decoded.
    """

    def __init__(
        self,
        size: int,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Interpolation = "bilinear",
    ) -> None:
        check_whole("crop size", size, least=1)
        check_choice("transform.interpolation", interpolation, get_args(Interpolation))
        for name, pair in (("scale", scale), ("ratio", ratio)):
            for number in pair:
                check_number(f"crop {name}", number)
            if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
                raise InputError(f"crop {name}={[*pair]}: expected two numbers above 0, the greater one last")
        self.size = size
        self.scale = tuple(scale)
        self.ratio = tuple(ratio)
        self.interpolation = interpolation

    def __call__(self, image: Tensor | ImageFile) -> Tensor:
        """Draw a part of an image (3, H, W), or of that of a file, from torch's global generator. -> (3, size, size)"""
        shape = (self.size, self.size)
        return _scale(_read_part(image, self.draw(*_read_size(image)), shape), shape, self.interpolation)

    def draw(self, height: int, width: int) -> Box:
        """Draw a part of an image of ``height`` x ``width``; take one in the middle if ten draws don't fit."""
        logs = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * torch.empty(1).uniform_(*self.scale).item()
            ratio = torch.exp(torch.empty(1).uniform_(*logs)).item()
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                top, left = (int(torch.randint(0, room + 1, (1,))) for room in (height - h, width - w))
                return Box(top, left, h, w)
        h = min(height, round(width / self.ratio[0]))
        w = min(width, round(height * self.ratio[1]))
        return Box((height - h) // 2, (width - w) // 2, h, w)


class Pad:
    """A transform that adds a border, so that no side is shorter than ``size``; 128 is normalized to about 0."""

    def __init__(self, size: int, fill: int = 128) -> None:
        check_whole("pad size", size, least=1)
        self.size = size
        self.fill = fill

    def __call__(self, image: Tensor) -> Tensor:
        """Add the border. (3, H, W) -> (3, max(H, size), max(W, size))"""
        height, width = (max(0, self.size - side) for side in image.shape[1:])
        if not height and not width:
            return image
        border = (0, 0, width // 2, width - width // 2, height // 2, height - height // 2)
        return F.pad(image.permute(1, 2, 0), border, value=self.fill).permute(2, 0, 1)


class Crops:
    """A transform that gives several views (3, h, w) of an image instead of one, such as torchvision's ``FiveCrop``."""

    def __init__(self, crop: Callable[[Tensor], Sequence[Tensor]]) -> None:
        self.crop = crop

    def __call__(self, image: Tensor) -> Tensor:
        """Stack the views of an image. (3, H, W) -> (V, 3, h, w)"""
        try:
            return stack(self.crop(image))
        except ValueError as error:
            raise InputError(f"evaluation.crops: {error}; transform.test needs a larger Resize") from error


def and_mirrored(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image (3, H, W) and its mirror image."""
    return image, image.flip(2)


class Pipeline:
    """A transform that applies steps one after the other."""

    def __init__(self, steps: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.steps = tuple(steps)

    @property
    def resize(self) -> Resize | None:
        """Return the first step if it is a bilinear `Resize`, whose result can be cached, and else None."""
        first = next(iter(self.steps), None)
        return first if isinstance(first, Resize) and first.interpolation == "bilinear" else None

    def __call__(self, image: Tensor | ImageFile) -> Tensor:
        """Transform an image (3, H, W), or that of a file. -> (3, h, w)"""
        if isinstance(image, Tensor):
            return _apply(self.steps, image)
        first = next(iter(self.steps), None)
        if isinstance(first, Resize | RandomResizedCrop):
            return self.rest(first(image))
        return _apply(self.steps, image.pixels())

    def rest(self, image: Tensor) -> Tensor:
        """Apply all steps but the first. (3, H, W) -> (3, h, w)"""
        return _apply(self.steps[1:], image)


def stack(images: Sequence[Tensor]) -> Tensor:
    """Stack images, each (..., 3, h, w), to a batch (B, ..., 3, h, w).

    Images whose channels come last in memory, like decoded files, keep this order: to change it takes 20 times as long.
    """
    other = next((image for image in images if image.shape != images[0].shape), None)
    if other is not None:
        sizes = " and ".join(f"{image.shape[-1]} x {image.shape[-2]}" for image in (images[0], other))
        raise InputError(f"transform: gives images of {sizes} pixels; let it end with a crop, which gives all one size")
    if images[0].is_contiguous():
        return torch.stack([*images])
    return torch.stack([image.movedim(-3, -1) for image in images]).movedim(-1, -3)


def _apply(steps: Iterable[Callable[[Tensor], Tensor]], image: Tensor) -> Tensor:
    for step in steps:
        with naming("transform", step):
            image = step(image)
    return image


def _read_size(image: Tensor | ImageFile) -> tuple[int, int]:
    return (image.height, image.width) if isinstance(image, ImageFile) else (image.shape[1], image.shape[2])


def _read_part(image: Tensor | ImageFile, box: Box, shape: tuple[int, int]) -> Tensor:
    """Return the pixels of a part; a file may be decoded at a reduced size that is enough to scale it to ``shape``."""
    if isinstance(image, ImageFile):
        return image.pixels(box, at_least=(REDUCING_GAP * shape[0], REDUCING_GAP * shape[1]))
    return image[:, box.top : box.top + box.height, box.left : box.left + box.width]


def _scale(image: Tensor, shape: tuple[int, int], interpolation: str) -> Tensor:
    if image.shape[1:] == shape:
        return image
    if not image.is_cpu:  # PyTorch scales uint8 on the CPU alone; bicubic weights are negative too
        scaled = F.interpolate(image[None].float(), shape, mode=interpolation, antialias=True)[0]
        return scaled.round().clamp(0, 255).byte()
    # The strides of this batch of one say that the channels come last. Those of `image[None]` don't, which takes twice
    # the time.
    batch = image.permute(1, 2, 0)[None].permute(0, 3, 1, 2)
    return F.interpolate(batch, shape, mode=interpolation, antialias=True)[0]
