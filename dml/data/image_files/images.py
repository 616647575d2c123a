"""Image files, decoded to upright RGB pixels no sooner and no larger than a transform needs them."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import simplejpeg
import torch
from torch import Tensor

from dml.data.image_files.contents import DAMAGES, describe_archive_damage, read_content
from dml.data.image_files.decoding import (
    SIDEWAYS,
    PixelValueError,
    decode_with_pillow,
    describe_damage,
    is_heif,
    is_out_of_memory,
    make_upright,
    read_jpeg_size,
    read_orientation,
    reads_heif,
)
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import find_part, split_part
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


class MissingImageError(UnreadableImageError):
    """An error for an image file that doesn't exist."""


class ImageMemoryError(InputError):
    """An error for memory that ran out while an image was read; the image file itself may be fine."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


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
        self.path = path
        self.limits = limits
        self.content = b""
        self._stored: tuple[int, int] = (0, 0)
        self._orientation = 1
        self._decoded: Tensor | None = None
        with self._name_file_in_errors():
            self.content = read_content(path, limits.max_image_bytes) if content is None else content
            if stored_size := read_jpeg_size(self.content):
                self._set_size(*stored_size)
                self._orientation = read_orientation(self.content, self._warn)
            else:
                self._decoded = decode_with_pillow(self.content, self._set_size, self._warn, self.limits.color)
                self._stored = self._decoded.shape[0], self._decoded.shape[1]
        height, width = self._stored
        self.size = (width, height) if self._orientation in SIDEWAYS else (height, width)
        with self._name_file_in_errors():
            self._part = Box(*find_part(split_part(path)[1], *self.size))
        self.height, self.width = self._part.height, self._part.width

    def pixels(self, box: Box | None = None, at_least: tuple[int, int] | None = None) -> Tensor:
        """Decode a box of the image, or of the part that ``path`` names, or the whole of it -> (3, h, w) uint8 RGB.

        In memory the channels come last. A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size if the box is still as
        large as ``at_least`` (height, width); its edges then move by at most half a decoded pixel.
        """
        box = box or Box(0, 0, self.height, self.width)
        box = box._replace(top=self._part.top + box.top, left=self._part.left + box.left)
        with self._name_file_in_errors():
            decoded = self._decode(_choose_reduction(box, at_least) if at_least else 1)
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
            if is_out_of_memory(error):
                raise
            self._decoded = decode_with_pillow(self.content, self._set_size, self._warn, self.limits.color)
            return self._decoded
        return make_upright(torch.from_numpy(stored), self._orientation)

    def _set_size(self, height: int, width: int) -> None:
        """Set the stored size to what the file claims, and refuse an image that is too large."""
        self._stored = height, width
        self.limits.check_pixels(height, width)

    @contextmanager
    def _name_file_in_errors(self) -> Iterator[None]:
        """Turn an error of reading the file into an `InputError`: one line that begins with the path of the file."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            fault = f"no such file{suggest_slashes(self.path)}"
            raise MissingImageError(self._error_line(fault), "no such file") from error
        except (RefusedFileError, PixelValueError) as error:
            raise UnreadableImageError(self._error_line(str(error)), str(error)) from error
        except Exception as error:  # decoders don't document which exceptions a broken file raises
            if is_out_of_memory(error):
                height, width = self._stored
                size = f"{len(self.content):,} bytes, {width:,} x {height:,} pixels"
                raise ImageMemoryError(
                    f"image {printable(self.path)}: the memory ran out while it was read ({size}); free memory, give "
                    "fewer data.num_workers, or refuse such files with a lower data.max_pixels"
                ) from error
            fault, reason = self._describe_fault(error)
            raise UnreadableImageError(self._error_line(fault), reason) from error

    def _describe_fault(self, error: Exception) -> tuple[str, str]:
        """Return the fault of a file that raised an error, for the error line, and the reason alone."""
        # Only the operating system sets errno; decoders raise OSError without it.
        if isinstance(error, OSError) and error.errno is not None:
            return f"cannot be read ({error.strerror})", f"{error.strerror}"
        if is_heif(self.content) and not reads_heif():
            fault = f"a HEIF image; {INSTALL_HEIF} reads it"
            return fault, fault
        is_unpacked = bool(self.content) or not isinstance(error, DAMAGES)
        reason = describe_damage(error, self.content) if is_unpacked else describe_archive_damage(error)
        return f"cannot be decoded ({reason})", reason

    def _warn(self, damage: str) -> None:
        warn_once(self.path, f"damaged metadata, of which the rest is read ({damage})")

    def _error_line(self, fault: str) -> str:
        return f"image {printable(self.path)}: {fault}{REMEDY}"


@lru_cache(maxsize=10_000)
def warn_once(path: str, fault: str) -> None:
    """Warn about a fault of an image, once in each process."""
    logger.warning("image %s: %s", printable(path), fault)


def read_image(path: str, limits: ImageLimits = LIMITS) -> Tensor:
    """Read and decode the image, or the part of one, at ``path``, as `ImageFile` does -> (3, H, W) uint8 RGB."""
    return ImageFile(path, limits).pixels()


def _choose_reduction(box: Box, at_least: tuple[int, int]) -> int:
    """Return the largest of libjpeg's fast reductions that leaves the box at least as large as ``at_least``."""
    height, width = at_least
    reductions = (8, 4, 2)
    return next((factor for factor in reductions if box.height >= factor * height and box.width >= factor * width), 1)


def _scale_slice(start: int, length: int, scale: float) -> slice:
    """Return the slice of decoded pixels that a range of the full-size image covers, at least one pixel."""
    first = round(start * scale)
    return slice(first, max(first + 1, round((start + length) * scale)))
