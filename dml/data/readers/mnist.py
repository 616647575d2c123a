import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.layout import Layout
from dml.data.pngs import cache_folder, members, png_archive
from dml.data.table import ImageTable
from dml.ops.errors import InputError

LAYOUT = Layout(
    name="MNIST",
    tree="train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each "
    "perhaps with .gz, in it or in MNIST/raw/",
    page="https://yann.lecun.com/exdb/mnist/",
)
FOLDERS = ("MNIST/raw", "raw", ".")
FILES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 8


def read(root: str | Path | None) -> ImageTable:
    """MNIST (LeCun et al., 1998): handwritten digits, the same ten classes in training and test.

    The images are stored as PNG files in a zip file beside the originals, or in the user's cache where that can't be
    written to; the first reading takes 20 s, the next ones find it.

    Args:
        root: the folder with the four files, or with ``MNIST/raw/`` as torchvision leaves it.

    Raises:
        InputError: if a file is missing, broken, or disagrees with its partner.
    """
    folder = LAYOUT.root(root)
    paths: list[str] = []
    digits: list[NDArray[np.uint8]] = []
    split: list[str] = []
    for name, prefix in FILES.items():
        pixels, labels = _file(folder, f"{prefix}-images", 3), _file(folder, f"{prefix}-labels", 1)
        images, numbers = _array(pixels, 3), _array(labels, 1)
        if len(images) != len(numbers):
            raise InputError(f"{labels}: {len(numbers)} labels, {len(images)} images in {pixels.name}")
        archive = png_archive(images, f"mnist-{name}", (pixels.parent, cache_folder()))
        paths += members(archive, len(images))
        digits.append(numbers)
        split += [name] * len(images)
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=np.concatenate(digits).astype(np.int64)[:, None],
        split=np.array(split, dtype=np.str_),
        levels=("digit",),
        names=(tuple(map(str, range(int(np.concatenate(digits).max(initial=9)) + 1))),),
        source=str(folder),
    )


def _file(folder: Path, name: str, dimensions: int) -> Path:
    names = [f"{name}{separator}idx{dimensions}-ubyte" for separator in "-."]
    return LAYOUT.find(folder, *(f"{place}/{file}{end}" for place in FOLDERS for file in names for end in ("", ".gz")))


def _array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of a file in the IDX format: two zero bytes, the type, the number of dimensions, their sizes, data.

    Raises:
        InputError: if it is none of unsigned bytes with so many dimensions, or is cut off.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be unpacked ({error})") from error
    end = 4 + 4 * dimensions
    if len(content) < end or content[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise InputError(f"{path}: not an IDX file of {dimensions} dimensions of unsigned bytes")
    sizes = np.frombuffer(content[4:end], ">u4")
    data = np.frombuffer(content[end:], np.uint8)
    if len(data) != sizes.prod():
        raise InputError(f"{path}: {len(data)} values, its head announces {' x '.join(map(str, sizes))}")
    return data.reshape(sizes)
