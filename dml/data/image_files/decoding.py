"""Functions that decode the bytes of image files to upright RGB pixels."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageOps
from PIL.ImageFile import ImageFile as OpenedImage
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, ...]
"""Red, green and blue, from 0 to 255."""
Warn = Callable[[str], None]
"""A function that is called with what is wrong with metadata, of which the rest is read."""

_REVERSED: dict[int, tuple[int, ...]] = {2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}
"""The dimensions to reverse for each value of EXIF's orientation but 1, after rows and columns of `SIDEWAYS` change."""
SIDEWAYS = (5, 6, 7, 8)
"""The values of EXIF's orientation that exchange height and width."""
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
"""The endings of the files that are read if pillow-heif, an extra, is installed."""
_FORMATS = {
    *("AVIF", "BMP", "DIB", "GIF", "HEIF", "JPEG", "JPEG2000", "MPO", "PCX"),
    *("PNG", "PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP"),
}
"""The formats that are read. For others, Pillow starts a program (EPS), or learns the size only as it decodes (ICO)."""

_header_lock = Lock()


class PixelValueError(Exception):
    """An error for pixel values that don't tell which value is black and which is white."""


def read_jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Return height and width as stored; None if the file isn't a JPEG that simplejpeg can convert to RGB."""
    if not content.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    return (height, width) if colorspace in ("YCbCr", "Gray", "RGB") else None


def read_orientation(jpeg: bytes, warn: Warn) -> int:
    """Return the orientation that EXIF or XMP states, or 1."""
    end = 2  # of the segments before the pixels; the whole file counts if they aren't well-formed
    while jpeg[end : end + 1] == b"\xff" and jpeg[end + 1 : end + 2] != b"\xda":
        end += 2 + int.from_bytes(jpeg[end + 2 : end + 4], "big")
    head = jpeg[:end] if jpeg[end : end + 2] == b"\xff\xda" else jpeg
    if b"Exif\0\0" not in head and b"tiff:Orientation" not in head:
        return 1
    with _open_with_pillow(jpeg, warn) as image:
        orientation = _read_exif(image, warn).get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in _REVERSED else 1


def make_upright(stored: Tensor, orientation: int) -> Tensor:
    """Turn stored pixels upright. (H, W, 3) -> (H, W, 3) or (W, H, 3)"""
    if orientation == 1:
        return stored
    return (stored.transpose(0, 1) if orientation in SIDEWAYS else stored).flip(_REVERSED[orientation])


@cache
def reads_heif() -> bool:
    """Tell whether pillow-heif is installed, with which Pillow reads HEIF files."""
    return find_spec("pillow_heif") is not None


def is_heif(content: bytes) -> bool:
    """Tell by its brand (ISO/IEC 23008-12) whether a file is a HEIF image, whatever the end of its name is."""
    return content[4:8] == b"ftyp" and content[8:12] in (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")


@cache
def _supported_formats() -> list[str]:
    """Return the `_FORMATS` that the installed Pillow supports, in the order in which Pillow tries them."""
    Image.init()
    if reads_heif():
        import_module("pillow_heif").register_heif_opener()
    return [name for name in Image.ID if name in _FORMATS]


@contextmanager
def _catch_metadata_warnings(warn: Warn) -> Iterator[None]:
    """Hand each warning of Pillow about damaged metadata to ``warn``; the filters of warnings are global."""
    with _header_lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        warn(message)


def _read_exif(image: Image.Image, warn: Warn) -> Image.Exif:
    with _catch_metadata_warnings(warn):
        return image.getexif()


def _open_with_pillow(content: bytes, warn: Warn) -> OpenedImage:
    """Read the header of an image, without Pillow's limit of 89 million pixels, which is global and restored."""
    with _catch_metadata_warnings(warn):
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(BytesIO(content), formats=_supported_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def decode_with_pillow(
    content: bytes, check_size: Callable[[int, int], None], warn: Warn, background: Color | None
) -> Tensor:
    """Decode an image and turn it upright; first ``check_size`` gets height and width as stored. -> (H, W, 3)"""
    with _open_with_pillow(content, warn) as image:
        check_size(image.height, image.width)
        return torch.from_numpy(decode_opened(image, warn, background))


def decode_opened(image: Image.Image, warn: Warn, background: Color | None, *, in_place: bool = True) -> Pixels:
    """Decode an image that Pillow has opened, and turn it upright; ``in_place`` saves a copy. -> (H, W, 3)

    If it isn't clear which of the values is black and which is white, it raises a PixelValueError.
    """
    file_format = image.format
    is_wide = ";16" in str(getattr(image, "tile", ""))  # of the two bytes a channel, Pillow keeps the upper one
    stated_bits = getattr(image, "tag_v2", {}).get(ExifTags.Base.BitsPerSample, (16,))[0]
    if not in_place:
        image = image.copy()  # which lacks what the lines above read
    upright: Any = image
    image.load()
    _read_exif(image, warn)  # Pillow keeps it for the next line, which doesn't warn again
    ImageOps.exif_transpose(image, in_place=True)  # otherwise an image that is upright already would be copied
    key = upright.info.get("transparency")  # the color, or the entries of the palette, that are transparent
    if upright.mode.startswith(("I", "F")):  # Pillow would clip these gray values instead of scaling them
        values = np.asarray(upright)
        upright = Image.fromarray(_scale_to_bytes(values, stated_bits))
        if key is not None:
            upright.putalpha(Image.fromarray(values != key))
    elif is_wide:
        *colors, (lowest, highest) = upright.convert("RGBA").getextrema()
        if np.max(colors) < 16 and lowest == highest:  # another alpha channel may draw in black
            raise PixelValueError(
                "colors of 16 bits, all below 4096, would become black; store them in 8 bits, or from 0 to 65535"
            )
    if file_format in ("BMP", "DIB", "TGA") and upright.mode == "RGBA" and not upright.getchannel("A").getbbox():
        upright = upright.convert("RGB")  # a fourth byte that isn't used
    return flatten(upright, background)


def flatten(image: Image.Image, background: Color | None) -> Pixels:
    """Lay an image of 8 bits a channel over a ground of one color, as people see it; None drops alpha. -> (H, W, 3)"""
    if image.has_transparency_data:
        image = image.convert("RGBA")
    if background is None or image.mode != "RGBA":
        return np.array(image.convert("RGB"))
    alpha = image.getchannel("A")
    ground = Image.new("RGB", image.size, background)
    ground.paste(image, mask=alpha)
    lowest, highest = alpha.getextrema()
    if lowest != highest and ground.getcolors(1):  # a drawing in the color of the ground
        ground = Image.new("RGB", image.size, tuple(0 if value > 127 else 255 for value in background))
        ground.paste(image, mask=alpha)
    return np.array(ground)


def _scale_to_bytes(values: npt.NDArray[Any], stated_bits: int) -> Pixels:
    """Scale gray values (H, W) of more than 8 bits to 8; 0 is black, the end of the smallest fitting range white."""
    # 12-bit cameras write 16-bit files, and some programs write 8-bit values as 32-bit integers. Floats that would be
    # darker than 1/16 of white in the range that they need, such as floats up to 1.2, are refused.
    low, high = values.min(), values.max()
    if values.dtype.kind == "f":
        ranges = "0 to 1, 0 to 255 or 0 to 65535"
        white = next((white for white in (1, 255, 65535) if high <= white), np.nan)
        if low >= 0 and (white == 1 or 16 * high >= white):
            return np.asarray(np.rint(values * (255 / white)), np.uint8)
    else:
        ranges = "0 to 255, 0 to 4095 or 0 to 65535"
        bits = next((bits for bits in ((12,) if stated_bits == 12 else (8, 12, 16)) if high < 2**bits), 0)
        if low >= 0 and bits:
            return np.asarray(values >> (bits - 8), np.uint8)
    raise PixelValueError(f"gray values from {low:g} to {high:g}; {ranges} could be read")
