"""The check of a transform's sizes: a crop that is much smaller than the resized image hides most of it."""

import logging
from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

logger = logging.getLogger(__name__)

CROPS = ("torchvision.transforms.v2.CenterCrop", "torchvision.transforms.v2.RandomCrop")
"""Transforms that cut out a part of the resized image and don't scale it."""


def warn_of_small_crops(transform: DictConfig) -> None:
    """Log a warning for each crop whose side is less than half of the side that images are resized to before.

    Such a crop comes from a ``transform.size`` that the file's Resize doesn't follow: transform=rll resizes to 256, as
    the paper does, and with transform.size=64 the test would see a sixteenth of each image.

    Args:
        transform: configuration of the transforms, with the keys ``train`` and ``test``.
    """
    for split in ("train", "test"):
        steps = OmegaConf.to_container(transform[split], resolve=True) if split in transform else {}
        resized: int | None = None
        for step in steps.get("steps") or () if isinstance(steps, Mapping) else ():
            target, size = (step.get("_target_"), step.get("size")) if isinstance(step, Mapping) else (None, None)
            if not isinstance(size, int):
                continue
            if target == "dml.data.transforms.Resize":
                resized = size
            elif target in CROPS and resized is not None and 2 * size < resized:
                logger.warning(
                    "transform.%s crops %d of %d pixels: most of each image is cut off; transform=imagenet resizes in "
                    "proportion to transform.size",
                    split,
                    size,
                    resized,
                )
