"""Traits of pictures that need no network: a small gray picture, by which copies are found, and the contrast."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dml.data.image_files.images import LIMITS, ImageFile, UnreadableImageError
from dml.data.image_files.limits import ImageLimits
from dml.data.worker_processes import run_in_processes

SIDE = 32
"""Height and width of the small pictures."""
CHUNK = 64
"""Number of images that a process reads at a time."""
FORMAT = 2
"""Version of the traits; it goes up when they change, so that stored ones are computed anew."""


def measure_traits(
    paths: Sequence[str],
    *,
    processes: int | None,
    advance: Callable[[int], None],
    limits: ImageLimits = LIMITS,
) -> NDArray[np.float32]:
    """Compute the traits of pictures -> (N, 1025) float32: the gray values of 32 x 32 pixels, and then the contrast.

    Whatever its proportions, a picture is scaled to a square. The contrast is the standard deviation of its gray values
    from 0 to 255 before that. An image that can't be read has NaN.
    """
    traits = np.full((len(paths), SIDE * SIDE + 1), np.nan, dtype=np.float32)
    chunks = [(start, [*paths[start : start + CHUNK]]) for start in range(0, len(paths), CHUNK)]
    for start, rows in run_in_processes(functools.partial(_measure_chunk, limits), chunks, processes):
        traits[start : start + len(rows)] = rows
        advance(len(rows))
    return traits


def _measure_chunk(limits: ImageLimits, chunk: tuple[int, list[str]]) -> tuple[int, NDArray[np.float32]]:
    start, paths = chunk
    return start, np.stack([_measure(path, limits) for path in paths])


def _measure(path: str, limits: ImageLimits) -> NDArray[np.float32]:
    try:
        pixels = ImageFile(path, limits).pixels()
    except UnreadableImageError:
        return np.full(SIDE * SIDE + 1, np.nan, dtype=np.float32)
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).convert("L")
    small = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return np.append(small, np.asarray(picture, dtype=np.float32).std()).astype(np.float32)
