"""JPEG files that the network's device decodes and transforms: ``data.decode=device``.

Workers read the files and check their heads; a batch holds the files until `decode_images`. torchcodec, with nvJPEG on
GPUs, rounds in another way than libjpeg-turbo, and decodes at full size, where the workers' decoder may reduce.
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
"""The number of files that are decoded in one call; the device's memory holds their pixels at full size."""


def decodes_on_device(key: str, value: str, *, has_gpu: bool) -> bool:
    """Return whether the device decodes by the value of a key; refuse that where it can't."""
    if value not in ("workers", "device") or (value == "device" and not has_gpu):
        raise InputError(f"{key}={value}: {'no CUDA device; workers' if value == 'device' else 'workers or device'}")
    if value == "device":
        check_installed("torchcodec", extra="decode")
    return value == "device"


class UndecodedImage:
    """A JPEG file, the steps of its transform, and the seed of their draws. No tuple: Lightning would take it apart."""

    def __init__(self, file: ImageFile, steps: Sequence[Any], seed: int) -> None:
        self.file, self.steps, self.seed = file, steps, seed


class DeferredPipeline(Pipeline):
    """A pipeline that leaves baseline JPEG files to `decode_images`, and transforms all other images at once."""

    def __call__(self, image: Tensor | ImageFile) -> Any:
        """Transform an image, or return an `UndecodedImage` with the seed that torch's global generator has."""
        if not isinstance(image, ImageFile) or not (jpeg := strip_baseline(image.content)):
            return super().__call__(image)
        if self.resize:  # else an image that becomes too large would be refused too late to leave it out
            image.check_resized(self.resize.shape(image.height, image.width))
        image.content = jpeg
        return UndecodedImage(image, self.steps, torch.initial_seed())


def join_images(images: Sequence[Any]) -> Any:
    """Stack images (..., 3, h, w) to a batch; if some of them wait undecoded, return the list of all."""
    return stack(images) if all(isinstance(image, Tensor) for image in images) else [*images]


def decode_images(images: Tensor | Sequence[Any], device: torch.device) -> Tensor:
    """Make the batch (B, ..., 3, h, w) of what `join_images` returned; a damaged image raises an `InputError`."""
    if isinstance(images, Tensor):
        return images
    waiting = [image for image in images if isinstance(image, UndecodedImage)]
    finished = {}
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            for start in range(0, len(waiting), FILES_AT_ONCE):
                part = waiting[start : start + FILES_AT_ONCE]
                for image, file in zip(part, _decode([image.file for image in part], device), strict=True):
                    torch.manual_seed(image.seed)
                    finished[image] = Pipeline(image.steps)(file)
    except UnreadableImageError as error:
        raise InputError(f"{without_remedy(error)} (decode=workers with on_corrupt=skip leaves it out)") from error
    return stack([finished.get(image, image).to(device) for image in images])


def _decode(files: Sequence[ImageFile], device: torch.device) -> list[ImageFile]:
    """Decode files in one call; one that torchcodec can't decode is read anew, for the decoder of the CPU."""
    from torchcodec.decoders import decode_jpeg  # an extra

    try:
        decoded = decode_jpeg([file.content for file in files], device=device)
    except RuntimeError as error:
        if len(files) > 1:
            return [decoded for file in files for decoded in _decode([file], device)]
        warn_once(files[0].path, f"decoded on the CPU, as torchcodec can't ({str(error).splitlines()[0]})")
        return [ImageFile(files[0].path, files[0].limits)]
    return [file.with_decoded(pixels) for file, pixels in zip(files, decoded, strict=True)]
