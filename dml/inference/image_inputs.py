"""The images that a user hands to a model: paths, folders, PIL images and arrays."""

import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dml.data.cells import compose_name
from dml.data.contents import ARCHIVE, MISSING, read_stamps
from dml.data.image_listing import list_images
from dml.data.images import (
    ImageFile,
    ImageLimits,
    PixelValueError,
    UnreadableImageError,
    decode_opened,
    flatten,
    without_remedy,
)
from dml.data.layout import name_similar, read_list_lines
from dml.data.lists import parse_frame
from dml.data.readers import csv
from dml.data.table import ImageTable, check_paths
from dml.data.transforms import Pipeline, stack
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

LISTS = (".csv", ".tsv", ".txt", ".parquet")  # the endings of the files that list images

ImageInput = str | Path | Image.Image | NDArray[Any] | Tensor
"""A path, also of a part, a PIL image, or pixels: an array (H, W, C) or (H, W) uint8, or a tensor (3, H, W) uint8.
The C channels of an array are gray, gray and alpha, RGB, or RGB and alpha.
"""

Source = str | Path | Sequence[str | Path] | ImageTable | Any
"""A folder of images, a list of them, paths, a table, or a pandas DataFrame with a column ``path``."""

SOURCES = "a folder of images, a list of them (.csv, .txt or .parquet), paths, a DataFrame or an ImageTable"


def unpack_paths(paths: Any) -> Any:
    """Return the paths in an array of texts, of any shape, as a list; everything else as it is."""
    return paths.reshape(-1).tolist() if isinstance(paths, np.ndarray) and paths.dtype.kind in "OU" else paths


def list_inputs(images: ImageInput | Iterable[ImageInput]) -> list[ImageInput]:
    """List the images that a user names: one image, several, or those of a `Source`."""
    if isinstance(images, str | Path) or _is_table(images):
        return [*list_source(images)[0]]
    named = unpack_paths(images)
    is_pixels = isinstance(named, np.ndarray | Tensor) and named.ndim < 4
    is_one = is_pixels or isinstance(named, Image.Image | bytes) or not isinstance(named, Iterable)
    listed: list[Any] = [named] if is_one else [*named]
    if not listed:
        raise InputError("images: there is none; give paths, PIL images, arrays or a folder of images")
    return listed


def _list_place(place: Path) -> tuple[list[str], list[str]]:
    """List the images of a folder, an archive, a list in `LISTS` or an image -> paths, and names of the classes.

    The class of an image in a folder or an archive is the folder that holds it, relative to the whole. A list has a
    column ``path`` and perhaps ``label``, as ``dataset=csv`` reads it, or is a .txt file with a path in each line;
    without classes, their names are empty.
    """
    if os.path.isdir(place) or place.suffix == ARCHIVE:
        paths = list_images(place)
        parents = (os.path.relpath(os.path.dirname(image), place) for image in paths)
        return paths, ["" if parent == "." else compose_name(parent) for parent in parents]
    ending = place.suffix.lower()
    if ending not in LISTS:
        return [str(place)], [""]
    if ending == ".txt" and "path" not in re.split(r"[,;\t]", (lines := read_list_lines(place))[0]):
        paths = [str(place.parent / expand_home(line.strip())) for line in lines if line.strip()]
        return paths, [""] * len(paths)
    return _name_rows(csv.read_listed(place))


def _name_rows(table: ImageTable) -> tuple[list[str], list[str]]:
    return table.paths.tolist(), [table.name_class(label) for label in table.labels[:, 0].tolist()]


def _is_table(images: Any) -> bool:
    return isinstance(images, ImageTable) or hasattr(images, "columns")


def list_source(source: Source) -> tuple[list[str], list[str]]:
    """List the images of a folder, archive or list, of paths or a table -> paths, and names of the classes or ""."""
    source = unpack_paths(source)
    if _is_table(source):
        is_table = isinstance(source, ImageTable)
        paths, names = _name_rows(source if is_table else ImageTable(**parse_frame(source, needs_labels=False)))
    elif isinstance(source, str | Path):
        if source == Path():
            raise InputError("images: Path('') stands for the whole working folder; give '.' if you mean that")
        path = expand_home(source)
        if read_stamps([str(path)])[0, 0] == MISSING[0]:
            line = f"{printable(path)}: no such file{name_similar(path)}; give images, a list or folder of them"
            raise InputError(line)
        paths, names = _list_place(path)
    elif isinstance(source, Iterable):
        paths = [str(expand_home(path)) for path in source]
        names = [""] * len(paths)
    else:
        raise InputError(f"images: {printable(type(source).__name__)}; expected {SOURCES}")
    if not paths:
        raise InputError(f"images: there is none; give {SOURCES}")
    check_paths(paths, str(source) if isinstance(source, str | Path) else "")
    return paths, names


def to_vectors(values: Any) -> Any:
    """Return vectors, numbers in a tensor or in nested lists, as an array of floats; everything else as it is."""
    if isinstance(values, Tensor) and values.is_floating_point():
        return values.float().numpy(force=True)
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return values.astype(np.float32)
    rows = [to_vectors(row) for row in values] if isinstance(values, list | tuple) else []
    if not rows or not all(isinstance(row, float | int) or getattr(row, "dtype", None) == np.float32 for row in rows):
        return values
    return np.array(rows, np.float32)


def check_readable(readable: int, images: int) -> None:
    """Make sure that some images could be read where unreadable ones are left out."""
    if images and not readable:
        raise InputError(f"images: not one of {images:,} could be read; give readable ones")


def read_batch(
    images: Sequence[ImageInput], transform: Pipeline, limits: ImageLimits, positions: Sequence[int]
) -> tuple[list[int], Tensor | None, list[str]]:
    """Read some images -> positions and batch (None without any) of the readable ones, and the errors of the others."""
    readable, pixels, errors = list[int](), list[Tensor](), list[str]()
    for position in positions:
        try:
            pixels.append(transform(read_pixels(images[position], limits, f"images[{position}]")))
            readable.append(position)
        except UnreadableImageError as error:
            errors.append(without_remedy(error))
    return readable, stack(pixels) if pixels else None, errors


def read_pixels(image: ImageInput, limits: ImageLimits, name: str = "image") -> Tensor | ImageFile:
    """Return the pixels (3, H, W) uint8 RGB of an image, ``name`` in error lines; of a path, the undecoded file."""
    if isinstance(image, str | Path):
        return ImageFile(str(expand_home(image)), limits)
    if isinstance(image, Image.Image):
        try:
            return torch.from_numpy(decode_opened(image, logger.warning, limits.color, in_place=False)).permute(2, 0, 1)
        # Pillow decodes a file when its pixels are needed; a ValueError tells that it can't convert a mode
        except (OSError, PixelValueError, ValueError) as error:
            raise UnreadableImageError(f"{name}: cannot be decoded ({error})") from error
    if isinstance(image, Tensor | np.ndarray) and image.dtype in (torch.uint8, np.uint8) and 0 not in image.shape:
        channels = image.shape[2:]
        if isinstance(image, Tensor) and len(image) == 3 and image.ndim == 3:
            return image
        if isinstance(image, np.ndarray) and image.ndim > 1 and channels in ((), (1,), (2,), (3,), (4,)):
            picture = Image.fromarray(np.ascontiguousarray(image.squeeze(2) if channels == (1,) else image))
            return torch.from_numpy(flatten(picture, limits.color)).permute(2, 0, 1)
    kind = type(image).__name__
    if isinstance(image, Tensor | np.ndarray):
        kind = f"{kind} {(*image.shape,)} of {image.dtype}"
    raise InputError(
        f"{name}: {kind}; expected a path, a PIL image, an array (H, W) or (H, W, 3) of uint8, also with alpha, or a "
        "tensor (3, H, W) of torch.uint8"
    )
