"""Image files, decoded to upright RGB pixels no sooner and no larger than a transform needs them."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import simplejpeg
import torch
from PIL import UnidentifiedImageError
from torch import Tensor

from dml.data.image_files.contents import DAMAGES, read_content
from dml.data.image_files.decoding import (
    SIDEWAYS,
    PixelValueError,
    decode_with_pillow,
    is_heif,
    make_upright,
    read_jpeg_size,
    read_orientation,
    reads_heif,
)
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import Box, find_part, split_part
from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError
from dml.runtime.text import printable

logger = logging.getLogger(__name__)

LIMITS = ImageLimits()
INSTALL_HEIF = "pip install 'dml-retrieval[heif]'"
"""The command that installs what reads HEIF files."""
REMEDY = " (data.on_corrupt=skip leaves it out)"
"""The end of the error line for an image that can't be read."""


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


def suggest_slashes(path: str) -> str:
    """Return the end of an error line about a missing file whose path is one of Windows; empty for any other path."""
    path_with_slashes = path.replace("\\", "/")
    if path_with_slashes == path or not os.path.exists(path_with_slashes):
        return ""
    return f", but there is {printable(path_with_slashes)}: paths take / instead of \\"


class ImageFile:
    """An image file, which is decoded when `pixels` is called, and turned upright.

    JPEG files of one or three channels are decoded by libjpeg-turbo, which gives the same pixels as Pillow; Pillow
    decodes all other files. A transparent image is laid over a ground of one color, ``data.background``. Gray values
    of more than 8 bits are scaled to 8 bits: since a file rarely states which value is white, the range is guessed
    from the largest value, see `dml.data.image_files.decoding`. Of damaged EXIF data, the part that can be read counts:
    without an orientation the image stays as it is stored. A warning names the file.

    ``path`` may name a part of a file, see `dml.data.image_files.parts`; ``size`` is that of the whole upright image,
    ``height`` and ``width`` are those of the part. ``content`` holds the bytes if they are in memory already.

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
        self._decoded = decode_with_pillow(self.content, self._set_size, self._warn, self.limits.color)
        return self._decoded

    def _set_size(self, height: int, width: int) -> None:
        """Set the stored size to what the file claims, and refuse an image that is too large."""
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
            fault = "no such file"
            return MissingImageError(f"{start} {fault}{suggest_slashes(self.path)}{REMEDY}", fault)
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
