"""The images on which an exported model is compared with the model itself."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from torch import Tensor

from dml.data.image_files.images import UnreadableImageError, without_remedy
from dml.data.table import ImageTable
from dml.data.table_changes.subsets import take_some_classes
from dml.data.transforms import stack
from dml.evaluation import evaluate
from dml.inference.embedder import Embedder
from dml.inference.image_inputs import read_pixels
from dml.inference.index_items import Source, list_source
from dml.ops.errors import InputError
from dml.run import builders
from dml.run.evaluators import choose_final_split

MAX_IMAGES = 1000
"""The number of images of a run's test that are taken at most."""

IMAGES_OF_CLASS = 4
"""The number of images of each class that are taken from a larger test; recall@1 needs at least two."""

NOISE = 8
"""The number of images of random pixels."""


@dataclass(frozen=True)
class Probe:
    """Images with their classes.

    Args:
        images: inputs (N, 3, h, w) uint8 RGB of the network.
        labels: (N,) classes by which recall@1 is computed; None without it.
        levels: names of the levels of the labels, the finest first; empty if they aren't known.
    """

    images: Tensor
    labels: NDArray[np.int64] | None = None
    levels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    def recall(self, vectors: NDArray[np.float32], curvature: float) -> float | None:
        """Compute recall@1 of vectors (N, D), each image searched among the others; None without classes.

        Args:
            vectors: vectors of the images.
            curvature: curvature of the ball that they are points of; 0 for unit vectors.
        """
        if self.labels is None:
            return None
        metrics = evaluate(
            vectors, self.labels, metrics=("recall",), recall_at=(1,), clustering=False, curvature=curvature
        )
        return metrics["level0/recall@1"]


def draw_noise(embedder: Embedder) -> Probe:
    """Draw images of random pixels, the same for each call."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (NOISE, 3, 256, 256), generator=generator, dtype=torch.uint8)
    return Probe(stack([embedder.preprocess(image) for image in pixels]))


def list_probe(embedder: Embedder, source: Source) -> Probe:
    """Read the images of a source, see `dml.inference.index_items.list_source`.

    Raises:
        InputError: if there is no image, or one can't be read.
    """
    paths, names = list_source(source)
    labels = np.unique(names, return_inverse=True)[1]
    levels = source.levels if isinstance(source, ImageTable) else ()
    return Probe(_read(embedder, paths), labels if np.bincount(labels).max() > 1 and any(names) else None, levels)


def read_test(embedder: Embedder) -> Probe:
    """Read test images of the run that trained the model, or validation images if it holds out none for a test.

    Args:
        embedder: trained model, whose run names the data set.

    Raises:
        InputError: if the data set isn't there, or reading it could run unknown code.
    """
    config = embedder.settings.config
    parts = {name: config[name] for name in ("dataset", "data", "evaluation") if name in config}
    if len(parts) < 3:
        raise InputError("probe images: this model doesn't say how its data set is read; --probe FOLDER gives images")
    try:
        with embedder.settings.building():
            table = builders.build_table(OmegaConf.create(parts))
    except InputError as error:
        raise InputError(f"probe images: {error}; --probe FOLDER gives others") from error
    tested = table.select_evaluated(choose_final_split(table))
    tested = tested.take(np.flatnonzero(tested.benchmark <= 0))  # of several lists, those of all levels or the finest
    if len(tested) > MAX_IMAGES:
        tested = take_some_classes(tested, classes=MAX_IMAGES // IMAGES_OF_CLASS, images=IMAGES_OF_CLASS)
    return Probe(_read(embedder, tested.paths.tolist()), tested.labels[:, 0], table.levels)


def _read(embedder: Embedder, paths: list[str]) -> Tensor:
    """Read and preprocess images -> (N, 3, h, w) uint8."""
    transform, limits = embedder.settings.build_transform(), embedder.settings.limits
    try:
        return stack([transform(read_pixels(path, limits)) for path in paths])
    except UnreadableImageError as error:
        raise InputError(f"{without_remedy(error)} (--probe FOLDER gives other images)") from error
