"""Image files, decoded to upright RGB pixels no sooner and no larger than a transform needs them.

libjpeg-turbo decodes JPEG files of one or three channels to the same pixels as Pillow, which decodes all other files.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageColor, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile as OpenedImage
from torch import Tensor

from dml.data.contents import DAMAGES, MAX_BYTES, Box, find_part, read_content, split_part
from dml.runtime.errors import InputError, check_whole
from dml.runtime.reading import RefusedFileError
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]
Color = tuple[int, ...]
"""Red, green and blue, from 0 to 255."""
Warn = Callable[[str], None]
"""A function that is called with what is wrong with metadata, of which the rest is read."""

INSTALL_HEIF = "pip install 'dml-retrieval[heif]'"
"""The command that installs what reads HEIF files."""
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
"""The endings of the files that are read if pillow-heif, an extra, is installed."""
REMEDY = " (data.on_corrupt=skip leaves it out)"
"""The end of the error line for an image that can't be read."""


@dataclass(frozen=True)
class ImageLimits:
    """How image files are read: how large they may be, and the color behind transparent pixels.

    Larger files and images are refused before they take memory. The pixels that a file claims count, not those that are
    decoded: libjpeg holds a progressive JPEG in memory at its full size. Decoding takes up to 13 bytes a pixel.
    """

    max_image_bytes: int = MAX_BYTES
    max_pixels: int = 120_000_000
    background: str = "white"

    def __post_init__(self) -> None:
        for option in ("max_image_bytes", "max_pixels"):
            check_whole(f"data.{option}", getattr(self, option), least=1)
        _ = self.color  # which tells of a background that is no color

    @property
    def color(self) -> Color | None:
        """The background as red, green and blue from 0 to 255; None if alpha is ignored."""
        with suppress(ValueError):
            if self.background == "none" or len(color := ImageColor.getrgb(str(self.background))) == 3:
                return None if self.background == "none" else color
        raise InputError(f"data.background={self.background}: a color, such as white or #808080, or none (no alpha)")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "ImageLimits":
        """Return the limits that the configuration's group ``data`` sets; it may lack some.

        >>> ImageLimits.from_settings({"max_pixels": 1000, "num_workers": 2}).max_pixels
        1000
        """
        return cls(**{limit.name: settings[limit.name] for limit in fields(cls) if limit.name in settings})

    def check_pixels(self, height: int, width: int) -> None:
        """Raise a `RefusedFileError` if an image of this size has too many pixels to be decoded."""
        if (pixels := height * width) > self.max_pixels:
            fault = f"{width:,} x {height:,} pixels, at most {self.max_pixels:,} are decoded"
            raise RefusedFileError(fault, f"data.max_pixels={pixels} reads it")

    def check_resized(self, size: tuple[int, int], resized: tuple[int, int]) -> None:
        """Raise a `RefusedFileError` if an image has too many pixels once it is scaled, as a thin strip may."""
        if (pixels := resized[0] * resized[1]) > self.max_pixels:
            fault = f"{size[1]:,} x {size[0]:,} pixels would be scaled to {resized[1]:,} x {resized[0]:,}"
            raise RefusedFileError(
                f"{fault}, at most {self.max_pixels:,} pixels", f"data.max_pixels={pixels} scales it"
            )


LIMITS = ImageLimits()


class UnreadableImageError(InputError):
    """An error for an image file that is missing, is refused, or can't be decoded.

    ``reason`` is the error line without the path; empty if it stands in no other place than the line.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class MissingImageError(UnreadableImageError):
    """An error for an image file that doesn't exist."""


class ImageMemoryError(InputError):
    """An error for memory that ran out while an image was read; the image file itself may be fine."""


def without_remedy(error: InputError) -> str:
    """Return the error line for an image without its end, which names options that only a training has."""
    line = str(error).removesuffix(REMEDY)
    cause = error.__cause__
    return line.removesuffix(f"; {cause.remedy}") if isinstance(cause, RefusedFileError) and cause.remedy else line


class PixelValueError(Exception):
    """An error for pixel values that don't tell which value is black and which is white."""


class ImageFile:
    """An image file, which is decoded when `pixels` is called, and turned upright.

    A transparent image is laid over a ground of one color, ``data.background``. Gray values of more than 8 bits are
    scaled to 8 bits: since a file rarely states which value is white, the range is guessed from the largest value. Of
    damaged EXIF data, the part that can be read counts: without an orientation the image stays as it is stored. A
    warning names the file.

    ``path`` may name a part of a file, see `dml.data.contents`; ``size`` is that of the whole upright image, ``height``
    and ``width`` are those of the part. ``content`` holds the bytes if they are in memory already.

    Raises:
        UnreadableImageError: if the file is missing, too large or not a regular file, the part isn't inside of the
            image, or it can't be decoded. For the pixels of a JPEG file, the last is raised by `pixels`.
        ImageMemoryError: if the memory runs out.
    """

    def __init__(self, path: str, limits: ImageLimits = LIMITS, content: bytes | None = None) -> None:
        self.path, self.limits, self.content = path, limits, b""
        self._stored, self._orientation = (0, 0), 1
        self._decoded: Tensor | None = None
        with self._name_file_in_errors():
            self.content = read_content(path, limits.max_image_bytes) if content is None else content
            if stored_size := read_jpeg_size(self.content):
                self._set_size(*stored_size)
                self._orientation = read_orientation(self.content, self._warn)
            else:
                decoded = self._decode_with_pillow()
                self._stored = decoded.shape[0], decoded.shape[1]
            height, width = self._stored
            self.size = (width, height) if self._orientation in SIDEWAYS else (height, width)
            self._part = find_part(split_part(path)[1], *self.size)
        self.height, self.width = self._part.height, self._part.width

    def pixels(self, box: Box | None = None, at_least: tuple[int, int] | None = None) -> Tensor:
        """Decode a box of the image, or of the part that ``path`` names, or the whole of it -> (3, h, w) uint8 RGB.

        In memory the channels come last. A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size if the box is still as
        large as ``at_least`` (height, width); its edges then move by at most half a decoded pixel.
        """
        box = box or Box(0, 0, self.height, self.width)
        box = box._replace(top=self._part.top + box.top, left=self._part.left + box.left)
        height, width = at_least or (box.height, box.width)
        reductions = (8, 4, 2, 1)
        reduction = next(
            (factor for factor in reductions if box.height >= factor * height and box.width >= factor * width), 1
        )
        with self._name_file_in_errors():
            decoded = self._decode(reduction)
        height, width = self.size
        if (box.height, box.width) != self.size:
            rows = _scale_slice(box.top, box.height, decoded.shape[0] / height)
            decoded = decoded[rows, _scale_slice(box.left, box.width, decoded.shape[1] / width)]
        return decoded.contiguous().permute(2, 0, 1)

    def check_resized(self, shape: tuple[int, int]) -> None:
        """Refuse an image that would have too many pixels when it is scaled to this height and width."""
        with self._name_file_in_errors():
            self.limits.check_resized((self.height, self.width), shape)

    def _decode(self, reduction: int) -> Tensor:
        if self._decoded is not None:
            return self._decoded
        height, width = (-(-side // reduction) for side in self._stored)
        try:
            stored = simplejpeg.decode_jpeg(self.content, min_height=height, min_width=width)
        except ValueError as error:  # Pillow decodes some damaged files, and its errors describe the damage better
            if _is_out_of_memory(error):
                raise
            return self._decode_with_pillow()
        return make_upright(torch.from_numpy(stored), self._orientation)

    def _decode_with_pillow(self) -> Tensor:
        with _open_with_pillow(self.content, self._warn) as image:
            self._set_size(image.height, image.width)
            self._decoded = torch.from_numpy(decode_opened(image, self._warn, self.limits.color))
        return self._decoded

    def _set_size(self, height: int, width: int) -> None:
        """Set the stored size to what the header claims, and refuse an image that is too large."""
        self._stored = height, width
        self.limits.check_pixels(height, width)

    @contextmanager
    def _name_file_in_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # decoders don't document which exceptions a broken file raises
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> InputError:
        """Turn an error of reading the file into one whose line begins with its path."""
        start = f"image {printable(self.path)}:"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return MissingImageError(f"{start} no such file{REMEDY}", "no such file")
        if _is_out_of_memory(error):
            size = "{:,} bytes, {:,} x {:,} pixels".format(len(self.content), *self._stored[::-1])
            return ImageMemoryError(
                f"{start} the memory ran out while it was read ({size}); free memory, give fewer data.num_workers, or "
                "refuse such files with a lower data.max_pixels"
            )
        if isinstance(error, RefusedFileError | PixelValueError):
            fault = reason = str(error)
        elif isinstance(error, OSError) and error.errno is not None:  # which only the operating system sets
            fault, reason = f"cannot be read ({error.strerror})", f"{error.strerror}"
        elif is_heif(self.content) and not reads_heif():
            fault = reason = f"a HEIF image; {INSTALL_HEIF} reads it"
        else:
            reason = _describe_damage(error, self.content)
            fault = f"cannot be decoded ({reason})"
        return UnreadableImageError(f"{start} {fault}{REMEDY}", reason)

    def _warn(self, damage: str) -> None:
        warn_once(self.path, f"damaged metadata, of which the rest is read ({damage})")


def _is_out_of_memory(error: Exception) -> bool:
    """Tell whether the memory ran out; libjpeg and Pillow's decoders may say so without a MemoryError."""
    words = ("insufficient memory", "out of memory", "cannot allocate memory")
    return isinstance(error, MemoryError) or any(message in str(error).lower() for message in words)


def _describe_damage(error: Exception, content: bytes) -> str:
    """Return in a few words why an image file can't be decoded, or the archive that it is in can't be read."""
    if not content and isinstance(error, DAMAGES):
        if isinstance(error, NotImplementedError):
            return "the archive has a compression that isn't read"
        return "the archive is encrypted" if isinstance(error, RuntimeError) else "the archive is damaged"
    if not content:
        return "empty file"
    if isinstance(error, UnidentifiedImageError):  # its message is the address of the content in memory
        return "not an image that Pillow can read"
    has_words = isinstance(error, OSError) and str(error)
    return " ".join(str(error).split()) if has_words else "damaged, or stored in a way that isn't read"


@lru_cache(maxsize=10_000)
def warn_once(path: str, fault: str) -> None:
    """Warn about a fault of an image, once in each process."""
    logger.warning("image %s: %s", printable(path), fault)


def read_image(path: str, limits: ImageLimits = LIMITS) -> Tensor:
    """Read and decode the image, or the part of one, at ``path``, as `ImageFile` does -> (3, H, W) uint8 RGB."""
    return ImageFile(path, limits).pixels()


def _scale_slice(start: int, length: int, scale: float) -> slice:
    """Return the slice of decoded pixels that a range of the full-size image covers, at least one pixel."""
    first = round(start * scale)
    return slice(first, max(first + 1, round((start + length) * scale)))


_REVERSED: dict[int, tuple[int, ...]] = {2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}
"""The dimensions to reverse for each value of EXIF's orientation but 1, after rows and columns of `SIDEWAYS` change."""
SIDEWAYS = (5, 6, 7, 8)
"""The values of EXIF's orientation that exchange height and width."""
_FORMATS = {
    *("AVIF", "BMP", "DIB", "GIF", "HEIF", "JPEG", "JPEG2000", "MPO", "PCX"),
    *("PNG", "PPM", "QOI", "SGI", "TGA", "TIFF", "WEBP"),
}
"""The formats that are read. For others, Pillow starts a program (EPS), or learns the size only as it decodes (ICO)."""

_header_lock = Lock()


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
