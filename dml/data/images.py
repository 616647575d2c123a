from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from dml.data.contents import content_of
from dml.ops.errors import InputError

Pixels = npt.NDArray[np.uint8]

# what brings the stored picture upright, for each value of EXIF's orientation but 1
_UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels.swapaxes(0, 1), 2),
    8: np.rot90,
}
_SIDEWAYS = (5, 6, 7, 8)
_BITS = (8, 12, 16)
_FLOAT_WHITES = (1, 255, 65535)


class UnreadableImageError(InputError):
    """An image file that is missing or can't be decoded."""


class MissingImageError(UnreadableImageError):
    """An image file that isn't there."""


class _PixelValueError(Exception):
    """Values of pixels that don't tell what is black and what is white."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class ImageFile:
    """An image, upright, that is decoded when its pixels are asked for, and no larger than they are asked for.

    Transparency is dropped: what is drawn beneath it shows. JPEG files of three channels or one are decoded by
    libjpeg-turbo itself, with the same pixels as Pillow's, which decodes all others. Grey values of more than 8 bits
    are scaled as `_to_bytes` says, for the file rarely states which value is white.

    Args:
        path: a file, or ``archive.zip/member``.

    Attributes:
        content: the file's bytes.
        height, width: in pixels, upright.

    Raises:
        UnreadableImageError: if it is missing or can't be decoded; of the pixels of a JPEG `pixels` finds that out.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with _errors_of(path):
            self.content = content_of(path)
            self._decoded: Pixels | None = None
            self._orientation = 1
            if header := _jpeg_header(self.content):
                self._stored = header
                self._orientation = _orientation(self.content)
            else:
                self._decoded = _decode_with_pillow(self.content)
                self._stored = self._decoded.shape[:2]
        height, width = self._stored
        self.height, self.width = (width, height) if self._orientation in _SIDEWAYS else (height, width)

    def pixels(self, box: Box | None = None, at_least: tuple[int, int] | None = None) -> Tensor:
        """The pixels of a part, or of the whole image.

        Args:
            box: the part.
            at_least: the height and width that suffice for it: a JPEG is then decoded at 1/2, 1/4 or 1/8 of its
                size, whichever is the smallest that still has them. The part's edges move by half a decoded pixel
                at most.

        Returns:
            (3, h, w) uint8 RGB; in memory the channels come last.
        """
        whole = Box(0, 0, self.height, self.width)
        box = box or whole
        with _errors_of(self.path):
            decoded = self._decode(_reduction(box, at_least) if at_least else 1)
        if box != whole:
            rows = _scaled(box.top, box.height, decoded.shape[0] / self.height)
            decoded = decoded[rows, _scaled(box.left, box.width, decoded.shape[1] / self.width)]
        return torch.from_numpy(np.ascontiguousarray(decoded)).permute(2, 0, 1)

    def _decode(self, reduction: int) -> Pixels:
        if self._decoded is not None:
            return self._decoded
        height, width = (-(-side // reduction) for side in self._stored)
        try:
            stored = simplejpeg.decode_jpeg(self.content, min_height=height, min_width=width)
        except ValueError:  # Pillow overlooks some damage, and says better what the matter is
            self._decoded = _decode_with_pillow(self.content)
            return self._decoded
        return _UPRIGHT[self._orientation](stored).copy() if self._orientation != 1 else stored


def read_image(path: str) -> Tensor:
    """The image at ``path``, as `ImageFile` reads it -> (3, H, W) uint8 RGB.

    Raises:
        UnreadableImageError: if it is missing or can't be decoded.
    """
    return ImageFile(path).pixels()


def _reduction(box: Box, at_least: tuple[int, int]) -> int:
    """The strongest reduction that libjpeg makes quickly: others than these take longer than the whole image."""
    height, width = at_least
    return next((by for by in (8, 4, 2) if box.height >= by * height and box.width >= by * width), 1)


def _scaled(start: int, length: int, scale: float) -> slice:
    first = round(start * scale)
    return slice(first, max(first + 1, round((start + length) * scale)))


def _jpeg_header(content: bytes) -> tuple[int, int] | None:
    """Height and width as stored; None if it isn't a JPEG that simplejpeg turns into RGB."""
    if not content.startswith(b"\xff\xd8\xff"):
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    return (height, width) if colorspace in ("YCbCr", "Gray", "RGB") else None


def _orientation(jpeg: bytes) -> int:
    """EXIF's orientation, also where XMP states it; Pillow is asked only if the file has either: it takes 0.1 ms."""
    head = jpeg[: _end_of_head(jpeg)]
    if b"Exif\0\0" not in head and b"tiff:Orientation" not in head:
        return 1
    with Image.open(BytesIO(jpeg)) as image:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in _UPRIGHT else 1


def _end_of_head(jpeg: bytes) -> int:
    """Where the segments before the picture end; at the file's end, if it isn't made as usual."""
    at = 2
    while jpeg[at : at + 1] == b"\xff" and jpeg[at + 1 : at + 2] != b"\xda":
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return at if jpeg[at : at + 2] == b"\xff\xda" else len(jpeg)


def _decode_with_pillow(content: bytes) -> Pixels:
    with Image.open(BytesIO(content)) as image:
        is_wide = ";16" in str(image.tile)  # of two bytes a channel Pillow keeps the upper one
        stated_bits = getattr(image, "tag_v2", {}).get(ExifTags.Base.BitsPerSample, (16,))[0]
        upright: Any = ImageOps.exif_transpose(image)
        if upright.mode.startswith(("I", "F")):  # grey values that Pillow would clip instead of scaling
            upright = Image.fromarray(_to_bytes(np.asarray(upright), stated_bits))
            is_wide = False
        elif "transparency" in upright.info:
            upright = upright.convert("RGBA")  # straight to RGB would warn
        pixels = np.array(upright.convert("RGB"))
    if is_wide and pixels.max(initial=0) < 16:
        raise _PixelValueError(
            "colours of 16 bits, all below 4096, would become black; store them in 8 bits, or from 0 to 65535"
        )
    return pixels


def _to_bytes(values: npt.NDArray[Any], stated_bits: int) -> Pixels:
    """Scales grey values of more than 8 bits to those of 8: black is 0, white the smallest range's end that holds all.

    The ranges of integers are 8, 12 and 16 bits, for 12-bit cameras write 16-bit files, and programs write what were
    bytes as 32-bit integers. Those of floats end at 1, 255 and 65535; values between two of them that would be darker
    than 1/16 of white, such as floats up to 1.2, are refused.

    Args:
        values: (H, W) integers or floats.
        stated_bits: what the file says each value has; it counts if it is 12.

    Raises:
        _PixelValueError: if values are negative, not finite, or in no range.
    """
    low, high = values.min(), values.max()
    if values.dtype.kind == "f":
        ranges = "0 to 1, 0 to 255 or 0 to 65535"
        white = next((white for white in _FLOAT_WHITES if high <= white), np.nan)
        if low >= 0 and (white == _FLOAT_WHITES[0] or 16 * high >= white):
            return np.asarray(np.rint(values * (255 / white)), np.uint8)
    else:
        ranges = "0 to 255, 0 to 4095 or 0 to 65535"
        possible = [stated_bits] if stated_bits == 12 else _BITS
        bits = next((bits for bits in possible if high < 2**bits), 0)
        if low >= 0 and bits:
            return np.asarray(values >> (bits - 8), np.uint8)
    raise _PixelValueError(f"grey values from {low:g} to {high:g}; {ranges} could be read")


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except _PixelValueError as error:
        raise UnreadableImageError(f"image {path}: {error} (data.on_corrupt=skip leaves it out)") from error
    except (FileNotFoundError, KeyError) as error:
        raise MissingImageError(f"image {path}: no such file (data.on_corrupt=skip leaves it out)") from error
    except Exception as error:  # decoders raise whatever they meet in a broken file
        raise UnreadableImageError(
            f"image {path}: cannot be decoded ({type(error).__name__}; data.on_corrupt=skip leaves it out)"
        ) from error
