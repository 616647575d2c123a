"""The images that a user hands to a model: paths, folders, PIL images and arrays."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from dml.data.image_files.decoding import PixelValueError, decode_opened
from dml.data.image_files.images import ImageFile, UnreadableImageError, without_remedy
from dml.data.image_files.limits import ImageLimits
from dml.data.image_listing import list_images
from dml.data.transforms import Pipeline
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.paths import expand_home

logger = logging.getLogger(__name__)

ImageInput = str | Path | Image.Image | NDArray[Any] | Tensor
"""A path, a PIL image, or pixels: an array (H, W, 3) or (H, W) uint8, or a tensor (3, H, W) uint8."""


def list_inputs(images: ImageInput | Iterable[ImageInput]) -> list[ImageInput]:
    """List the images that a user names: one image, several of them, or a folder.

    Args:
        images: an image, a sequence of images, or the path of a folder, which stands for all images in it and in the
            folders below it, sorted by path.

    Raises:
        InputError: if there is no image.
    """
    if isinstance(images, np.ndarray) and images.dtype.kind == "U":
        images = images.reshape(-1).tolist()  # paths, as an index's search returns them
    if isinstance(images, str | Path):
        path = expand_home(images)
        listed: list[ImageInput] = [*list_images(path)] if os.path.isdir(path) else [images]
    elif isinstance(images, Image.Image | np.ndarray | Tensor):
        # a batch of pixels holds one image for each index of its first dimension
        listed = [images] if isinstance(images, Image.Image) or images.ndim < 4 else [*images]
    elif isinstance(images, bytes) or not isinstance(images, Iterable):
        listed = [images]  # no image, which is told where the images are read
    else:
        listed = [*images]
    if not listed:
        raise InputError("images: there is none; give paths, PIL images, arrays or a folder of images")
    return listed


def check_readable(readable: int, images: int) -> None:
    """Make sure that some images could be read where unreadable ones are left out.

    Args:
        readable: number of images that could be read.
        images: number of all images.

    Raises:
        InputError: if there are images and not one could be read.
    """
    if images and not readable:
        raise InputError(f"images: not one of {images:,} could be read; give readable ones")


class ImageInputs(Dataset[tuple[int, Tensor | None, str]]):
    """A data set of the images that a user hands over, each with its position and its error.

    Args:
        images: paths, PIL images, arrays or tensors.
        transform: transform of an image (3, H, W) uint8, or of an `ImageFile`, to the network's input.
        limits: largest size of an image file.
    """

    def __init__(self, images: Sequence[ImageInput], transform: Pipeline, limits: ImageLimits) -> None:
        self.images = images
        self.transform = transform
        self.limits = limits

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[int, Tensor | None, str]:
        """Return the index, the network's input (3, h, w) and ""; or None and the error if the image is unreadable."""
        try:
            return index, self.transform(read_pixels(self.images[index], self.limits, f"images[{index}]")), ""
        except UnreadableImageError as error:
            return index, None, without_remedy(error)


def read_pixels(image: ImageInput, limits: ImageLimits, name: str = "image") -> Tensor | ImageFile:
    """Return the pixels (3, H, W) uint8 RGB of an image, or its file, which is decoded later.

    Args:
        image: path, PIL image or pixels.
        limits: largest size of an image file.
        name: name of the image in error lines, unless it is a file.

    Raises:
        UnreadableImageError: if the file is missing or can't be decoded.
        InputError: if the pixels have another shape or type.
    """
    if isinstance(image, str | Path):
        return ImageFile(str(expand_home(image)), limits)
    if isinstance(image, Image.Image):
        if not (image.width and image.height):
            raise InputError(f"{name}: an image of {image.width} x {image.height} pixels; expected at least 1 x 1")
        try:
            return torch.from_numpy(decode_opened(image, logger.warning, in_place=False)).permute(2, 0, 1)
        # Pillow decodes a file when its pixels are needed; a ValueError tells that it can't convert a mode
        except (OSError, PixelValueError, ValueError) as error:
            raise UnreadableImageError(f"{name}: cannot be decoded ({error})") from error
    if isinstance(image, Tensor):
        if image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3 and image.numel():
            return image
        raise InputError(f"{name}: a tensor {tuple(image.shape)} of {image.dtype}; expected (3, H, W) of torch.uint8")
    if isinstance(image, np.ndarray):
        is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3))
        if image.dtype == np.uint8 and is_image and image.size:
            pixels = image if image.ndim == 3 else image[:, :, None]
            return torch.from_numpy(np.repeat(pixels, 3 // pixels.shape[2], axis=2)).permute(2, 0, 1)
        raise InputError(f"{name}: an array {image.shape} of {image.dtype}; expected (H, W, 3) or (H, W) of uint8")
    raise InputError(f"{name}: {printable(type(image).__name__)}; expected a path, a PIL image, an array or a tensor")
