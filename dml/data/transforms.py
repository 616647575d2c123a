"""What a configuration's transforms are made of, beside torchvision's: (3, H, W) uint8 -> (3, h, w) uint8.

Plain classes: OmegaConf, which hands these objects around in lists, would take a dataclass apart.

A transform that opens with `Resize` or `RandomResizedCrop` reads a file no larger than it needs, and `Resize`, being
the same every time, not at all if a cache has its result.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dml.data.images import Box, ImageFile
from dml.ops.errors import InputError

REDUCING_GAP = 2
"""A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size if that leaves this many times the height and width that a
transform asks for, so that scaling down does the rest. The gap is that of Pillow's `Image.thumbnail`: the pixels are
then off by 1 to 2 of 255 in the mean, as by saving the JPEG once more."""


class Resize:
    """Scales an image, bilinear with antialiasing, as torchvision does.

    Args:
        mode: "warp" makes it ``size`` x ``size``; "shorter" and "longer" make that side ``size`` and keep the
            proportions, the other side rounded down.
        size: in pixels.
    """

    def __init__(self, mode: str, size: int) -> None:
        if mode not in ("warp", "shorter", "longer"):
            raise InputError(f"resize mode={mode}: warp, shorter or longer")
        _check_size("resize size", size)
        self.mode = mode
        self.size = size

    def __call__(self, image: Tensor | ImageFile) -> Tensor:
        """(3, H, W), or a file -> (3, h, w)."""
        height, width = _size_of(image)
        shape = self.shape(height, width)
        return _scaled(_part(image, Box(0, 0, height, width), shape), shape)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that an image of ``height`` x ``width`` gets."""
        if self.mode == "warp":
            return self.size, self.size
        side = min(height, width) if self.mode == "shorter" else max(height, width)
        return max(1, self.size * height // side), max(1, self.size * width // side)


class RandomResizedCrop:
    """A random part of an image, scaled to ``size`` x ``size``: torchvision's, with the same draws and pixels.

    The part is drawn in the image's own coordinates, before anything is decoded.

    Args:
        size: in pixels.
        scale: the least and the greatest share of the area.
        ratio: the least and the greatest width / height.
    """

    def __init__(
        self, size: int, scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3)
    ) -> None:
        _check_size("crop size", size)
        for name, pair in (("scale", scale), ("ratio", ratio)):
            if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
                raise InputError(f"crop {name}={[*pair]}: two numbers above 0, the greater one last")
        self.size = size
        self.scale = tuple(scale)
        self.ratio = tuple(ratio)

    def __call__(self, image: Tensor | ImageFile) -> Tensor:
        """(3, H, W), or a file -> (3, size, size), drawn from torch's global generator."""
        shape = (self.size, self.size)
        return _scaled(_part(image, self.draw(*_size_of(image)), shape), shape)

    def draw(self, height: int, width: int) -> Box:
        """A part of an image of ``height`` x ``width``; in the middle, if ten draws don't fit into the image."""
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
    """Adds a border, so that no side is under ``size``; the image stays in the middle.

    Args:
        size: in pixels.
        fill: the border's value in all three channels; 128 is about what networks take as 0.
    """

    def __init__(self, size: int, fill: int = 128) -> None:
        _check_size("pad size", size)
        self.size = size
        self.fill = fill

    def __call__(self, image: Tensor) -> Tensor:
        """(3, H, W) -> (3, max(H, size), max(W, size))."""
        height, width = (max(0, self.size - side) for side in image.shape[1:])
        if not height and not width:
            return image
        border = (0, 0, width // 2, width - width // 2, height // 2, height - height // 2)
        return F.pad(image.permute(1, 2, 0), border, value=self.fill).permute(2, 0, 1)


class Crops:
    """Several views of an image instead of one.

    Args:
        crop: (3, H, W) -> views (3, h, w), all of one size, such as torchvision's ``FiveCrop``.
    """

    def __init__(self, crop: Callable[[Tensor], Sequence[Tensor]]) -> None:
        self.crop = crop

    def __call__(self, image: Tensor) -> Tensor:
        """(3, H, W) -> (V, 3, h, w)."""
        try:
            return stack(self.crop(image))
        except ValueError as error:
            raise InputError(f"evaluation.crops: {error}; transform.test needs a larger Resize") from error


def and_mirrored(image: Tensor) -> tuple[Tensor, Tensor]:
    """(3, H, W) -> itself and its mirror image."""
    return image, image.flip(2)


class Pipeline:
    """One step after the other.

    Args:
        steps: (3, H, W) -> (3, h, w) each; their randomness comes from torch's global generator.
    """

    def __init__(self, steps: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.steps = tuple(steps)

    @property
    def resize(self) -> Resize | None:
        """The first step, if it is a `Resize`, whose result can be kept."""
        return self.steps[0] if self.steps and isinstance(self.steps[0], Resize) else None

    def __call__(self, image: Tensor | ImageFile) -> Tensor:
        """(3, H, W), or a file -> (3, h, w)."""
        if isinstance(image, Tensor):
            return _in_turn(self.steps, image)
        first = next(iter(self.steps), None)
        if isinstance(first, Resize | RandomResizedCrop):
            return self.rest(first(image))
        return _in_turn(self.steps, image.pixels())

    def rest(self, image: Tensor) -> Tensor:
        """What follows on the first step: (3, H, W) -> (3, h, w)."""
        return _in_turn(self.steps[1:], image)


def stack(images: Sequence[Tensor]) -> Tensor:
    """(..., 3, h, w) each -> (B, ..., 3, h, w).

    Images whose channels come last in memory, as those of files do, stay so: to turn them takes 20 times as long.
    """
    if images[0].is_contiguous():
        return torch.stack([*images])
    return torch.stack([image.movedim(-3, -1) for image in images]).movedim(-1, -3)


def _in_turn(steps: Iterable[Callable[[Tensor], Tensor]], image: Tensor) -> Tensor:
    for step in steps:
        image = step(image)
    return image


def _size_of(image: Tensor | ImageFile) -> tuple[int, int]:
    return (image.height, image.width) if isinstance(image, ImageFile) else (image.shape[1], image.shape[2])


def _part(image: Tensor | ImageFile, box: Box, shape: tuple[int, int]) -> Tensor:
    """The pixels of a part that is going to be scaled to ``shape``."""
    if isinstance(image, ImageFile):
        return image.pixels(box, at_least=(REDUCING_GAP * shape[0], REDUCING_GAP * shape[1]))
    return image[:, box.top : box.top + box.height, box.left : box.left + box.width]


def _scaled(image: Tensor, shape: tuple[int, int]) -> Tensor:
    if image.shape[1:] == shape:
        return image
    # a batch of one whose strides say that channels come last: `image[None]` doesn't, and takes twice the time
    batch = image.permute(1, 2, 0)[None].permute(0, 3, 1, 2)
    return F.interpolate(batch, shape, mode="bilinear", antialias=True)[0]


def _check_size(name: str, size: int) -> None:
    if not isinstance(size, int) or size < 1:
        raise InputError(f"{name}={size}: a whole number of pixels, at least 1")
