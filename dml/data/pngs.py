"""Images that come as arrays, stored once as PNG files in a zip, for `dml.data.images` to read."""

import os
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dml.ops.errors import InputError


def cache_folder() -> Path:
    """Where files go that can be made again: ``$XDG_CACHE_HOME/dml``, or ``~/.cache/dml``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dml"


def png_archive(images: NDArray[np.uint8], name: str, folders: Sequence[Path]) -> Path:
    """The zip file of the images, as ``00000.png``...; it is written unless it is there.

    Its name holds a checksum of the pixels, so that it never belongs to others. It is written beside its place and
    renamed: whoever finds it finds it whole, however many processes begin at a time.

    Args:
        images: (N, H, W) grey values.
        name: what the file's name begins with.
        folders: where to look for it, and to write it: the first that can be written to.

    Raises:
        InputError: if none can.
    """
    file = f"{name}-{crc32(images.tobytes()):08x}.zip"
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    refusals = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / file, images)
        except OSError as error:
            refusals.append(f"{folder} ({error.strerror})")
        else:
            return folder / file
    raise InputError(f"{file}: cannot be written to {' or '.join(refusals)}; XDG_CACHE_HOME names another folder")


def _write(path: Path, images: NDArray[np.uint8]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")  # of this process alone
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for i, image in enumerate(images):
                png = BytesIO()
                Image.fromarray(image).save(png, "PNG")
                archive.writestr(zipfile.ZipInfo(f"{i:05d}.png"), png.getvalue())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def members(archive: Path, number: int) -> list[str]:
    """The paths of the images in a `png_archive`."""
    return [f"{archive}/{i:05d}.png" for i in range(number)]
