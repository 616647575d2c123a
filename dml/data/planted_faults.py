"""Faults that are planted in the training images on purpose, to measure what a loss loses by them."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dml.data.table import UNKNOWN, ImageTable
from dml.runtime.errors import InputError, suggest

FEWEST_IMAGES = 2
"""The fewest images that a class keeps: one image has no positive."""


@dataclass(frozen=True)
class PlantedFaults:
    """The faults to plant; validation and test images stay as they are.

    Args:
        label_noise: share of the training images that get the label of another training class, each class with the
            same probability (symmetric noise), 0 to 1.
        long_tail: number by which the images of the classes are divided, from 1 for the first class to this number for
            the last, with equal ratios between neighbors (as Cui et al., 2019, make CIFAR long-tailed); 1 drops none.
            The seed draws the order of the classes. Each class keeps `FEWEST_IMAGES`, before labels are changed.
        thinning: number by which the images of every class are divided: the balanced counterpart of ``long_tail``.
        seed: seed of all draws.

    Raises:
        InputError: if a number is outside of its range.
    """

    label_noise: float = 0.0
    long_tail: float = 1.0
    thinning: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.label_noise <= 1:
            raise InputError(
                f"dataset.planted.label_noise={self.label_noise}: expected a share from 0 to 1, such as 0.1"
            )
        for name in ("long_tail", "thinning"):
            if not getattr(self, name) >= 1:
                raise InputError(f"dataset.planted.{name}={getattr(self, name)}: expected 1 or more, such as 3")
        if self.seed < 0:
            raise InputError(f"dataset.planted.seed={self.seed}: expected 0 or more")


def read_planted_faults(settings: Any) -> PlantedFaults:
    """Read ``dataset.planted``."""
    known = [field.name for field in fields(PlantedFaults)]
    for key, value in settings.items():
        if key not in known:
            raise InputError(f"dataset.planted.{key}: unknown; it has {', '.join(known)}{suggest(str(key), known)}")
        if isinstance(value, bool) or not isinstance(value, int if key == "seed" else int | float):
            raise InputError(f"dataset.planted.{key}={value}: expected a number")
    return PlantedFaults(**settings)


def plant_faults(table: ImageTable, faults: PlantedFaults) -> tuple[ImageTable, int]:
    """Return a table with faults in its training images, and the number of changed labels.

    First images are dropped, then labels are changed.

    A changed image has the labels of its new class at every level.
    """
    random = np.random.default_rng([faults.seed, 0x1A8E1])
    rows = np.flatnonzero((table.split == "train") & (table.labels[:, 0] != UNKNOWN))
    classes, members = np.unique(table.labels[rows, 0], return_inverse=True)
    ranks = random.permutation(len(classes)) / max(len(classes) - 1, 1)
    divisors = faults.long_tail**ranks * faults.thinning
    dropped = [_draw_dropped(rows[members == place], divisor, random) for place, divisor in enumerate(divisors)]
    remaining = np.setdiff1d(np.arange(len(table)), np.concatenate(dropped or [rows[:0]])).astype(np.int64)
    return _change_labels(table.take(remaining), faults.label_noise, random)


def _draw_dropped(rows: NDArray[np.int64], divisor: float, random: np.random.Generator) -> NDArray[np.int64]:
    count = max(round(len(rows) / divisor), min(FEWEST_IMAGES, len(rows)))
    dropped: NDArray[np.int64] = random.permutation(rows)[count:]
    return dropped


def _change_labels(table: ImageTable, share: float, random: np.random.Generator) -> tuple[ImageTable, int]:
    rows = np.flatnonzero((table.split == "train") & (table.labels[:, 0] != UNKNOWN))
    number = round(share * len(rows))
    if not number:
        return table, 0
    classes, first, members = np.unique(table.labels[rows, 0], return_index=True, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"dataset.planted.label_noise={share}: there is no second training class to take labels from")
    changed = random.choice(len(rows), number, replace=False)
    new_classes = (members[changed] + random.integers(1, len(classes), number)) % len(classes)  # never the class itself
    labels = table.labels.copy()
    labels[rows[changed]] = table.labels[rows[first[new_classes]]]
    return replace(table, labels=labels), number
