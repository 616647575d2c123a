"""JPEG files that the network's device decodes and transforms: ``data.decode=device``.

Workers read the files and check their headers. A batch then holds the files instead of pixels, until `decode_images`
decodes them where the network is. torchcodec's decoder, nvJPEG, rounds in another way than libjpeg-turbo, and has no
reduced sizes: each image is decoded at its full size and scaled once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dml.data.image_files.decoding import strip_baseline
from dml.data.image_files.images import ImageFile, UnreadableImageError, warn_once, without_remedy
from dml.data.transforms import Pipeline, stack
from dml.runtime.errors import InputError, check_installed

FILES_AT_ONCE = 32
"""The number of files that are decoded in one call; their pixels at full size are in the device's memory together."""
REMEDY = " (decode=workers with on_corrupt=skip leaves it out)"
"""The end of the error line for an image that turns out to be damaged when it is decoded."""


class UndecodedImage:
    """A JPEG file that waits to be decoded and transformed.

    It isn't a dataclass nor a tuple, into which Lightning and PyTorch would look for tensors.

    Args:
        file: file whose ``content`` is a JPEG without metadata.
        transform: transform of the file.
        seed: seed of the transform's draws.
    """

    def __init__(self, file: ImageFile, transform: Pipeline, seed: int) -> None:
        self.file, self.transform, self.seed = file, transform, seed


class DeferredPipeline(Pipeline):
    """A pipeline that leaves baseline JPEG files to `decode_images`, and transforms all other images at once.

    The draws are those of the pipeline itself: they are made later, with the seed that torch's global generator has.
    """

    def __init__(self, transform: Pipeline) -> None:
        super().__init__(transform.steps)
        self.transform = transform

    def __call__(self, image: Tensor | ImageFile) -> Any:
        """Transform an image, or return an `UndecodedImage`."""
        jpeg = strip_baseline(image.content) if isinstance(image, ImageFile) else b""
        if not isinstance(image, ImageFile) or not jpeg:
            return self.transform(image)
        if self.resize:  # else the file would be refused only when it is decoded
            image.check_resized(self.resize.shape(image.height, image.width))
        image.content = jpeg
        return UndecodedImage(image, self.transform, torch.initial_seed())


def check_device_decoding(option: str, *, has_gpu: bool) -> None:
    """Make sure that the network's device can decode images, which ``option`` asks for."""
    if not has_gpu:
        raise InputError(f"{option}=device: no CUDA device; workers")
    check_installed("torchcodec", extra="decode")


def join_images(images: Sequence[Any]) -> Any:
    """Stack images (..., 3, h, w) to a batch; if some of them wait undecoded, return the list of all."""
    return stack(images) if all(isinstance(image, Tensor) for image in images) else [*images]


def decode_images(images: Tensor | Sequence[Any], device: torch.device) -> Tensor:
    """Make the batch (B, ..., 3, h, w) of what `join_images` returned; files are decoded and transformed on the device.

    Raises:
        InputError: if an image is damaged.
    """
    if isinstance(images, Tensor):
        return images
    generators, transformed = [torch.default_generator], []
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for start in range(0, len(images), FILES_AT_ONCE):
            part = images[start : start + FILES_AT_ONCE]
            decoded = iter(_decode([image.file for image in part if isinstance(image, UndecodedImage)], device))
            for image in part:
                if isinstance(image, UndecodedImage):
                    for generator in generators:
                        generator.manual_seed(image.seed)
                    image = image.transform(next(decoded))
                transformed.append(image.to(device))
    return stack(transformed)


def _decode(files: Sequence[ImageFile], device: torch.device) -> list[ImageFile]:
    """Decode files in one call; a file that torchcodec can't decode is read anew, for the decoder of the CPU."""
    from torchcodec.decoders import decode_jpeg  # an extra

    try:
        decoded = decode_jpeg([file.content for file in files], device=device) if files else []
    except RuntimeError as error:
        if len(files) > 1:
            return [decoded for file in files for decoded in _decode([file], device)]
        warn_once(files[0].path, f"decoded on the CPU, as torchcodec can't ({str(error).splitlines()[0]})")
        return [ImageFile(files[0].path, files[0].limits)]
    for file, pixels in zip(files, decoded, strict=True):
        file.set_decoded(pixels)
    return [*files]
