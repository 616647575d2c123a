"""The check of a transform's sizes: a crop must fit the resized image, and show most of it."""

import logging
from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf

from dml.ops.errors import InputError

logger = logging.getLogger(__name__)

CROPS = ("torchvision.transforms.v2.CenterCrop", "torchvision.transforms.v2.RandomCrop")
"""Transforms that cut out a part of the resized image and don't scale it."""

RESIZES = ("dml.data.transforms.Resize", "torchvision.transforms.v2.Resize")
PAD = "dml.data.transforms.Pad"
REMEDY = "transform=imagenet resizes in proportion to transform.size"


def check_crops(transform: DictConfig, *, is_trained: bool = False) -> None:
    """Refuse a crop that is larger than the image is resized to before, and log a warning if it is less than half.

    Such a crop comes from a ``transform.size`` that the file's Resize doesn't follow: transform=rll resizes to 256, as
    the paper does. With transform.size=64 the test would see a sixteenth of each image, and with transform.size=336 a
    black frame around it.

    Args:
        transform: configuration of the transforms, with the keys ``train`` and ``test``.
        is_trained: whether a model was trained with it; then a crop that is too large is warned of, too.

    Raises:
        InputError: if a crop is larger than the resized image.
    """
    for split, size, resized in _find_crops(transform):
        line = f"transform.{split} crops {size} of {resized} pixels"
        if size > resized:
            line += ", and frames each image in black"
            if not is_trained:
                raise InputError(f"{line}: transform.size must be {resized} at most; {REMEDY}")
            logger.warning("%s; %s", line, REMEDY)
        elif 2 * size < resized:
            logger.warning("%s: most of each image is cut off; %s", line, REMEDY)


def _find_crops(transform: DictConfig) -> Iterator[tuple[str, int, int]]:
    """Yield the split of each crop behind a Resize, its side, and the side of the image that it is cut out of."""
    for split in ("train", "test"):
        steps = OmegaConf.to_container(transform[split], resolve=True) if split in transform else {}
        side: int | None = None
        for step in steps.get("steps") or () if isinstance(steps, Mapping) else ():
            target, size = (step.get("_target_"), step.get("size")) if isinstance(step, Mapping) else (None, None)
            if not isinstance(size, int):
                continue
            if target in RESIZES:
                side = size
            elif side is not None and target == PAD:
                side = max(side, size)
            elif side is not None and target in CROPS:
                yield split, size, side
