"""Traits of pictures that need no network: a perceptual hash, by which copies are found, and the contrast."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dml.data.image_files.images import LIMITS, ImageFile, UnreadableImageError
from dml.data.image_files.limits import ImageLimits
from dml.data.worker_processes import run_in_processes

HASH_SIDE = 16
"""The side of the square of frequencies that the perceptual hash keeps: 16 x 16 = 256 bits."""
HASH_BITS = HASH_SIDE * HASH_SIDE
CHUNK = 64
"""Number of images that a process reads at a time."""
FORMAT = 1
"""Version of the traits; it goes up when they change, so that stored ones are computed anew."""


def measure_traits(
    paths: Sequence[str],
    *,
    processes: int,
    advance: Callable[[int], None],
    limits: ImageLimits = LIMITS,
) -> NDArray[np.float32]:
    """Compute the traits of pictures -> (N, 257) float32: the bits of the perceptual hash, and then the contrast.

    The hash is `imagehash.phash`: which low frequencies of the grey picture are above their median. A picture keeps
    almost all bits when it is scaled or stored as a JPEG file. The contrast is the standard deviation of the grey
    values from 0 to 255. An image that can't be read has NaN.

    Args:
        paths: paths of the images.
        processes: number of processes that share the work.
        advance: function that is called with a number of images whenever so many more images are done.
        limits: largest size of an image file.
    """
    traits = np.full((len(paths), HASH_BITS + 1), np.nan, dtype=np.float32)
    chunks = [(start, [*paths[start : start + CHUNK]]) for start in range(0, len(paths), CHUNK)]
    for start, rows in run_in_processes(functools.partial(_measure_chunk, limits), chunks, processes):
        traits[start : start + len(rows)] = rows
        advance(len(rows))
    return traits


def _measure_chunk(limits: ImageLimits, chunk: tuple[int, list[str]]) -> tuple[int, NDArray[np.float32]]:
    start, paths = chunk
    return start, np.stack([_measure(path, limits) for path in paths])


def _measure(path: str, limits: ImageLimits) -> NDArray[np.float32]:
    import imagehash  # late: it is in the extra "audit"

    try:
        pixels = ImageFile(path, limits).pixels()
    except UnreadableImageError:
        return np.full(HASH_BITS + 1, np.nan, dtype=np.float32)
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).convert("L")
    bits = imagehash.phash(picture, hash_size=HASH_SIDE).hash.ravel()
    return np.append(bits, np.asarray(picture, dtype=np.float32).std()).astype(np.float32)
