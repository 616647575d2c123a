import os
import zipfile
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dml.ops.errors import InputError


def read_image(path: str) -> Tensor:
    """The image at ``path``, a file or ``archive.zip/member``, upright -> (3, H, W) uint8 RGB.

    Transparency is dropped: what is drawn beneath it shows.

    Raises:
        InputError: if it is missing or can't be decoded.
    """
    try:
        with Image.open(_open(path)) as image:
            upright = ImageOps.exif_transpose(image)
            if "transparency" in upright.info:
                upright = upright.convert("RGBA")  # straight to RGB would warn
            pixels = np.array(upright.convert("RGB"))
    except (FileNotFoundError, KeyError) as error:
        raise InputError(f"image {path}: no such file (data.on_corrupt=skip leaves it out)") from error
    except Exception as error:  # decoders raise whatever they meet in a broken file
        raise InputError(
            f"image {path}: cannot be decoded ({type(error).__name__}; data.on_corrupt=skip leaves it out)"
        ) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _open(path: str) -> str | BytesIO:
    archive, separator, member = path.partition(".zip/")
    if not separator or Path(path).exists():
        return path
    return BytesIO(_archive(f"{archive}.zip", os.getpid()).read(member))


@lru_cache(maxsize=8)
def _archive(path: str, process: int) -> zipfile.ZipFile:  # noqa: ARG001
    """One open archive a process: forked workers that share a file handle would share its position too."""
    return zipfile.ZipFile(path)
