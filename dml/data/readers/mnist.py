"""The reader of MNIST."""

import gzip
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dml.data.image_files.limits import LIST_OPTION, current_max_list_bytes, name_list_in_errors, read_list_bytes
from dml.data.image_files.pngs import store_as_pngs, user_cache_folder
from dml.data.layout import Layout
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.reading import check_unpacked

LAYOUT = Layout(
    name="MNIST",
    tree="train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each "
    "perhaps with .gz, in it or in MNIST/raw/",
    page="https://yann.lecun.com/exdb/mnist/",
)
FOLDERS = ("MNIST/raw", "raw", ".")
FILES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 8
"""The code of unsigned bytes in the IDX format."""


def read(root: str | Path | None) -> ImageTable:
    """Read MNIST (LeCun et al., 1998): handwritten digits, with the same ten classes in training and test.

    The first call takes 20 s, because it writes the images as PNG files to a zip file: beside the original files, or in
    the user's cache folder if the folder of the original files can't be written to. Later calls use this zip file.

    Args:
        root: the folder that holds the four files, or ``MNIST/raw/`` as torchvision writes it.

    Raises:
        InputError: if a file is missing or broken, or has another number of images than labels.
    """
    folder = LAYOUT.root(root)
    paths: list[str] = []
    digits: list[NDArray[np.uint8]] = []
    split: list[str] = []
    for name, prefix in FILES.items():
        image_file, label_file = _find_file(folder, f"{prefix}-images", 3), _find_file(folder, f"{prefix}-labels", 1)
        images, labels = _read_array(image_file, 3), _read_array(label_file, 1)
        if len(images) != len(labels):
            raise InputError(f"{label_file}: {len(labels)} labels, {len(images)} images in {image_file.name}")
        paths += store_as_pngs(images, f"mnist-{name}", (image_file.parent, user_cache_folder()))
        digits.append(labels)
        split += [name] * len(images)
    return ImageTable(
        paths=np.array(paths, dtype=np.str_),
        labels=np.concatenate(digits).astype(np.int64)[:, None],
        split=np.array(split, dtype=np.str_),
        levels=("digit",),
        names=(tuple(map(str, range(int(np.concatenate(digits).max(initial=9)) + 1))),),
        source=str(folder),
    )


def _find_file(folder: Path, name: str, dimensions: int) -> Path:
    files = [f"{name}{separator}idx{dimensions}-ubyte" for separator in "-."]
    endings = ("", ".gz")
    return LAYOUT.find(folder, *(f"{parent}/{file}{end}" for parent in FOLDERS for file in files for end in endings))


def _unpack(path: Path, packed: bytes) -> bytes:
    """Unpack the content of a .gz file up to the limit, since it may be a thousand times as large as the file."""
    max_bytes = current_max_list_bytes()
    with name_list_in_errors(path), gzip.open(BytesIO(packed)) as file:
        content = file.read(max_bytes + 1)
        check_unpacked(len(content), max_bytes, LIST_OPTION)
        return content


def _read_array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read the array of a file in the IDX format, which may be packed as .gz.

    The format is: two zero bytes, the type, the number of dimensions, the sizes of the dimensions, and the data.

    Raises:
        InputError: if the data aren't unsigned bytes with this number of dimensions, or the file is cut off.
    """
    content = read_list_bytes(path)
    if path.suffix == ".gz":
        try:
            content = _unpack(path, content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be unpacked ({error})") from error
    end = 4 + 4 * dimensions
    if len(content) < end or content[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise InputError(f"{path}: not an IDX file of {dimensions} dimensions of unsigned bytes")
    sizes = np.frombuffer(content[4:end], ">u4")
    data = np.frombuffer(content[end:], np.uint8)
    if len(data) != sizes.prod():
        raise InputError(f"{path}: {len(data)} values, expected {' x '.join(map(str, sizes))} by its header")
    return data.reshape(sizes)
