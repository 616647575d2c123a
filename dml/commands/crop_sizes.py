"""The check of a transform's sizes: a crop must fit the resized image, and show most of it."""

import logging
from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError

logger = logging.getLogger(__name__)

CROPS = ("torchvision.transforms.v2.CenterCrop", "torchvision.transforms.v2.RandomCrop")
"""Transforms that cut out a part of the resized image and don't scale it."""

RESIZES = ("dml.data.transforms.Resize", "torchvision.transforms.v2.Resize")
PAD = "dml.data.transforms.Pad"


def check_crops(transform: DictConfig) -> None:
    """Refuse a crop that is larger than the image is resized to before, and log a warning if it is less than half.

    Such a crop comes from a ``transform.size`` that the file's Resize doesn't follow: transform=rll resizes to 256, as
    the paper does. With transform.size=64 the test would see a sixteenth of each image, and with transform.size=336 a
    black frame around it.

    Args:
        transform: configuration of the transforms, with the keys ``train`` and ``test``.

    Raises:
        InputError: if a crop is larger than the resized image.
    """
    for split in ("train", "test"):
        steps = OmegaConf.to_container(transform[split], resolve=True) if split in transform else {}
        resized, is_padded = None, False
        for step in steps.get("steps") or () if isinstance(steps, Mapping) else ():
            target, size = (step.get("_target_"), step.get("size")) if isinstance(step, Mapping) else (None, None)
            if not isinstance(size, int):
                continue
            if target in RESIZES:
                resized, is_padded = size, False
            elif target == PAD:
                is_padded = True
            elif target in CROPS and resized is not None:
                _check_crop(split, size, resized, is_padded)


def _check_crop(split: str, size: int, resized: int, is_padded: bool) -> None:
    if size > resized and not is_padded:
        raise InputError(
            f"transform.{split} crops {size} of {resized} pixels, and would frame each image in black: transform.size "
            f"must be {resized} at most; transform=imagenet resizes in proportion to it"
        )
    if 2 * size < resized:
        logger.warning(
            "transform.%s crops %d of %d pixels: most of each image is cut off; transform=imagenet resizes in "
            "proportion to transform.size",
            split,
            size,
            resized,
        )
