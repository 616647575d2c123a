"""Archives of PNG files for data sets whose images come as arrays; `images` reads them like other image files."""

import os
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dml.runtime.errors import InputError
from dml.runtime.files import replacing


def user_cache_folder() -> Path:
    """Return the user's folder for files that can be made again: ``$XDG_CACHE_HOME/dml``, or ``~/.cache/dml``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dml"


def store_as_pngs(images: NDArray[np.uint8], name: str, folders: Sequence[Path]) -> list[str]:
    """Store gray images (N, H, W) in a zip file as ``00000.png``, ``00001.png`` and so on -> their N paths.

    If no folder holds the zip file, it is written to the first folder that can be written to. Its name contains a
    checksum of the pixels, so that it is never taken for the file of other images. Several processes may call this
    function at a time: the file appears at its path only when it is complete.

    Raises:
        InputError: if none of the folders can be written to.
    """
    paths = [folder / f"{name}-{crc32(images.tobytes()):08x}.zip" for folder in folders]
    archive = next((path for path in paths if path.is_file()), None) or _write_archive(images, paths)
    return [f"{archive}/{i:05d}.png" for i in range(len(images))]


def _write_archive(images: NDArray[np.uint8], paths: Sequence[Path]) -> Path:
    """Write a zip file of images to the first of several paths that can be written to -> the path."""
    refusals = []
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_pngs(path, images)
        except OSError as error:
            refusals.append(f"{path.parent} ({error.strerror})")
        else:
            return path
    fault = f"cannot be written to {' or '.join(refusals)}; XDG_CACHE_HOME names another folder"
    raise InputError(f"{paths[0].name}: {fault}")


def _write_pngs(path: Path, images: NDArray[np.uint8]) -> None:
    with replacing(path) as partial, zipfile.ZipFile(partial, "w") as archive:
        for i, image in enumerate(images):
            png = BytesIO()
            Image.fromarray(image).save(png, "PNG")
            archive.writestr(zipfile.ZipInfo(f"{i:05d}.png"), png.getvalue())
