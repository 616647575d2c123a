"""Print how many images a second are read from a cache in random order, and how much is read from the disk for them.

python scripts/bench_cache.py           # a minute; 2.4 GB of temporary files
systemd-run --scope -p MemoryMax=1G python scripts/bench_cache.py    # with less memory than the cache takes

The images are noise of 256 x 256 pixels. None of them is in memory at first, and one process reads them. Beside the
cache stands the same file, mapped into memory.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import argparse
import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dml.data.prepared.cache import ImageCache, PixelFile

SIDE = 256
BYTES = SIDE * SIDE * 3


def write_cache(path: Path, images: int) -> ImageCache:
    """Write a file of pixels, and return its cache."""
    noise = np.random.default_rng(0).integers(256, size=BYTES + images, dtype=np.uint8)
    checksums = []
    with path.open("wb") as file:
        for image in range(images):
            pixels = noise[image : image + BYTES].tobytes()
            checksums.append(crc32(pixels))
            file.write(pixels)
        file.flush()
        os.fsync(file.fileno())
    sides = {"height": [SIDE] * images, "width": [SIDE] * images}
    index = pa.table({"offset": [image * BYTES for image in range(images)], "crc32": checksums, **sides})
    return ImageCache(PixelFile(path), index, remedy="")


def forget(path: Path) -> None:
    """Take the pages of a file out of memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(name: str, read: Callable[[int], object], rows: NDArray[np.int64]) -> None:
    """Print what it takes to read some images."""
    blocks, started = resource.getrusage(resource.RUSAGE_SELF).ru_inblock, perf_counter()
    for row in rows.tolist():
        read(row)
    seconds = perf_counter() - started
    megabytes_read = (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - blocks) * 512 / 1e6
    megabytes_of_images = len(rows) * BYTES / 1e6
    disk = f"{megabytes_read:10,.0f} MB from the disk for {megabytes_of_images:,.0f} MB"
    print(f"{name:20}{len(rows) / seconds:8,.0f} images/s{disk}")


def main() -> None:
    """Measure the cache and a file that is mapped into memory, twice each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=12_000, help="images in the cache")
    images: int = parser.parse_args().images
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.pixels"
        cache = write_cache(path, images)
        mapped = np.memmap(path, np.uint8, "r").reshape(images, BYTES)
        for name, read in (("cache", cache.pixels), ("mapped into memory", lambda row: mapped[row].copy())):
            forget(path)
            for _ in range(2):
                measure(name, read, rng.permutation(images)[: images // 3])


if __name__ == "__main__":
    main()
