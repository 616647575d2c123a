"""Parts of images: ``photo.jpg#10,20,110,220`` is a box in a photo, its left, top, right and bottom edge in pixels."""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError

COLUMNS = ("x_1", "y_1", "x_2", "y_2")
"""The columns of a list that hold the edges of a box: left, top, right and bottom."""
_PART = re.compile(r"#(-?\d+),(-?\d+),(-?\d+),(-?\d+)\Z", re.ASCII)

Edges = tuple[int, ...]
"""Left, top, right and bottom edge of a part; () is the whole image."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def split_part(location: str) -> tuple[str, Edges]:
    """Split the location of an image into the path of the file and the edges of the part."""
    match = _PART.search(location) if "#" in location else None
    return (location[: match.start()], tuple(map(int, match.groups()))) if match else (location, ())


def name_part(path: str, edges: Edges) -> str:
    """Return the location of a part of an image."""
    return f"{path}#{','.join(map(str, edges))}" if edges else path


def identify_images(locations: Iterable[str]) -> list[str]:
    """Return for each location what all spellings of the same image share: its path without links, and its box."""
    resolve, identities = cache(os.path.realpath), []
    for path, location in ((split_part(location)[0], location) for location in locations):
        real = os.path.join(resolve(os.path.dirname(path)), os.path.basename(path))
        identities.append((os.path.realpath(real) if os.path.islink(real) else real) + location[len(path) :])
    return identities


def parse_edges(cells: Sequence[Any], place: str, *, rounds: bool = False) -> Edges:
    """Parse the edges of a box, such as "10" or 10.0; four empty cells are (). ``rounds`` is for Pillow's ``crop``."""
    if not any(texts := [str(cell).strip() for cell in cells]):
        return ()
    with suppress(ValueError, OverflowError):  # not four, no number, NaN or infinite
        values = [float(round(float(text)) if rounds else text) for text in texts]
        left, top, right, bottom = edges = tuple(map(int, values))
        if [*edges] == values and 0 <= left < right < 2**31 and 0 <= top < bottom < 2**31:
            return edges
    line = "expected x_1,y_1,x_2,y_2 in whole pixels, 0 <= x_1 < x_2 and 0 <= y_1 < y_2, or none for the whole image"
    raise InputError(f"{place}: the box {','.join(texts)!r}, {line}")


def find_part(edges: Edges, height: int, width: int) -> Box:
    """Return the part of an image of height x width, or raise a RefusedFileError."""
    left, top, right, bottom = edges or (0, 0, width, height)
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise RefusedFileError(f"the box {left},{top},{right},{bottom} isn't inside of its {width} x {height} pixels")
    return Box(top, left, bottom - top, right - left)
