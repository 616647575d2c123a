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
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile as OpenedImage
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, ...]
"""Red, green and blue, from 0 to 255."""

_REVERSED: dict[int, tuple[int, ...]] = {2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}
"""The dimensions to reverse for each value of EXIF's orientation but 1, after rows and columns of `SIDEWAYS` change."""
SIDEWAYS = (5, 6, 7, 8)
"""The values of EXIF's orientation that exchange height and width."""
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
"""The endings of the files that are read if pillow-heif, an extra, is installed."""
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""The brands that begin the files of HEIF images (ISO/IEC 23008-12)."""
_BITS = (8, 12, 16)
"""The bits that integer gray values may have."""
_FLOAT_WHITES = (1, 255, 65535)
"""The values that may mean white in gray values of floating point."""

_FORMATS = {
    *("AVIF", "BMP", "DIB", "GIF", "HEIF", "JPEG", "JPEG2000", "MPO", "PCX"),
    *("PNG", "PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP"),
}
"""The formats that are read.

Pillow can read more formats. For some of them it starts another program (EPS), or learns the size of the image only
while it decodes it (ICO).
"""
_OUT_OF_MEMORY = ("insufficient memory", "out of memory", "cannot allocate memory")
"""Parts of the messages of libjpeg and of Pillow's decoders that run out of memory without raising MemoryError."""

DAMAGED = "damaged, or stored in a way that isn't read"
"""The reason for an error of a decoder that has no words for the file."""

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


def read_orientation(jpeg: bytes, warn: Callable[[str], None]) -> int:
    """Return the orientation that EXIF or XMP states, or 1."""
    head = b"".join(_split_head(jpeg))
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


def _split_head(jpeg: bytes) -> list[bytes]:
    """Return the marker of the start and the segments before the pixels; the whole file if they aren't well-formed."""
    segments, position = [jpeg[:2]], 2
    while jpeg[position : position + 1] == b"\xff" and jpeg[position + 1 : position + 2] != b"\xda":
        end = position + 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
        segments.append(jpeg[position:end])
        position = end
    return segments if jpeg[position : position + 2] == b"\xff\xda" else [jpeg]


@cache
def reads_heif() -> bool:
    """Tell whether pillow-heif is installed, with which Pillow reads HEIF files."""
    return find_spec("pillow_heif") is not None


def is_heif(content: bytes) -> bool:
    """Tell by its first bytes whether a file is a HEIF image, whatever the end of its name is."""
    return content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS


@cache
def _supported_formats() -> list[str]:
    """Return the `_FORMATS` that the installed Pillow supports, in the order in which Pillow tries them."""
    Image.init()
    if reads_heif():
        import_module("pillow_heif").register_heif_opener()
    return [name for name in Image.ID if name in _FORMATS]


@contextmanager
def _catch_metadata_warnings(warn: Callable[[str], None]) -> Iterator[None]:
    """Hand each warning of Pillow about damaged metadata to ``warn``; filters are global, so `_header_lock` is held."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        warn(message)


def _read_exif(image: Image.Image, warn: Callable[[str], None]) -> Image.Exif:
    """Read the EXIF data of an image; what is damaged in them is passed over, and handed to ``warn``."""
    with _header_lock, _catch_metadata_warnings(warn):
        return image.getexif()


def _open_with_pillow(content: bytes, warn: Callable[[str], None]) -> OpenedImage:
    """Read the header of an image, without Pillow's limit of 89 million pixels, which is global and restored."""
    with _header_lock, _catch_metadata_warnings(warn):
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(BytesIO(content), formats=_supported_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def decode_with_pillow(
    content: bytes, check_size: Callable[[int, int], None], warn: Callable[[str], None], background: Color | None
) -> Tensor:
    """Decode an image and turn it upright; first ``check_size`` gets height and width as stored. -> (H, W, 3)"""
    with _open_with_pillow(content, warn) as image:
        check_size(image.height, image.width)
        return torch.from_numpy(decode_opened(image, warn, background))


def decode_opened(
    image: Image.Image, warn: Callable[[str], None], background: Color | None, *, in_place: bool = True
) -> Pixels:
    """Decode an image that Pillow has opened, and turn it upright; ``in_place`` saves a copy. -> (H, W, 3)

    ``warn`` is called with what is wrong with metadata. If it isn't clear which of the values is black and which is
    white, it raises a PixelValueError.
    """
    tile, file_format = str(getattr(image, "tile", "")), image.format
    is_wide = ";16" in tile  # of the two bytes a channel, Pillow keeps the upper one
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
        is_wide = False
    if is_wide:
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
    lowest, highest = alpha.getextrema()
    ground = Image.new("RGB", image.size, background)
    ground.paste(image, mask=alpha)
    if lowest != highest and ground.getcolors(1):
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
        white = next((white for white in _FLOAT_WHITES if high <= white), np.nan)
        if low >= 0 and (white == _FLOAT_WHITES[0] or 16 * high >= white):
            return np.asarray(np.rint(values * (255 / white)), np.uint8)
    else:
        ranges = "0 to 255, 0 to 4095 or 0 to 65535"
        possible_bits = [stated_bits] if stated_bits == 12 else _BITS
        bits = next((bits for bits in possible_bits if high < 2**bits), 0)
        if low >= 0 and bits:
            return np.asarray(values >> (bits - 8), np.uint8)
    raise PixelValueError(f"gray values from {low:g} to {high:g}; {ranges} could be read")


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether a decoder ran out of memory, by the type or the message of its error."""
    return isinstance(error, MemoryError) or any(message in str(error).lower() for message in _OUT_OF_MEMORY)


def describe_damage(error: Exception, content: bytes) -> str:
    """Return in a few words why the content of an image file can't be decoded."""
    if not content:
        return "empty file"
    if isinstance(error, UnidentifiedImageError):  # its message is the address of the content in memory
        return "not an image that Pillow can read"
    return " ".join(str(error).split()) if isinstance(error, OSError) and str(error) else DAMAGED
