"""How a data set's files are read, and their largest size: a few bytes can claim more pixels than memory can hold."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from PIL import ImageColor

from dml.runtime.errors import InputError, check_whole
from dml.runtime.reading import RefusedFileError, read_regular
from dml.runtime.text import printable

MAX_LIST_BYTES = 1 << 30
LIST_OPTION = "data.max_list_bytes"
"""The key of the configuration that sets the limit on lists."""

_max_list_bytes = ContextVar("max_list_bytes", default=MAX_LIST_BYTES)


@dataclass(frozen=True)
class ImageLimits:
    """How image files are read: how large they may be, and the color behind transparent pixels.

    Larger files and images are refused before they take memory. The pixels that a file claims count, not those that are
    decoded: libjpeg holds a progressive JPEG in memory at its full size. Decoding takes up to 13 bytes a pixel.
    """

    max_image_bytes: int = 512 << 20
    max_pixels: int = 120_000_000
    background: str = "white"

    def __post_init__(self) -> None:
        for option in ("max_image_bytes", "max_pixels"):
            check_whole(f"data.{option}", getattr(self, option), least=1)
        _ = self.color  # which tells of a background that is no color

    @property
    def color(self) -> tuple[int, ...] | None:
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


@contextmanager
def limit_list_bytes(max_list_bytes: int) -> Iterator[None]:
    """Let `read_list_bytes` read files of up to ``max_list_bytes`` bytes in the body of the ``with`` statement."""
    token = _max_list_bytes.set(max_list_bytes)
    try:
        yield
    finally:
        _max_list_bytes.reset(token)


def current_max_list_bytes() -> int:
    """Return the largest number of bytes of a list, and of what a reader may unpack from one file."""
    return _max_list_bytes.get()


def read_list_bytes(path: str | Path) -> bytes:
    """Read a file that lists a data set's images."""
    with name_list_in_errors(path):
        return read_regular(path, current_max_list_bytes(), LIST_OPTION)


@contextmanager
def name_list_in_errors(path: str | Path) -> Iterator[None]:
    """Turn an error of reading a list into an `InputError`: one line that begins with the path of the list."""
    try:
        yield
    except RefusedFileError as error:
        raise InputError(f"{printable(path)}: {error}") from error
    except MemoryError as error:
        raise InputError(f"{printable(path)}: the memory ran out while it was read") from error
    except OSError as error:
        if error.errno is None:
            raise
        raise InputError(f"{printable(path)}: cannot be read ({error.strerror})") from error
