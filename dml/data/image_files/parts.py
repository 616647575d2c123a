"""Parts of images: ``photo.jpg#10,20,110,220`` is a box in a photo, its left, top, right and bottom edge in pixels."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError
from dml.runtime.text import printable

COLUMNS = ("x_1", "y_1", "x_2", "y_2")
"""The columns of a list that hold the edges of a box: left, top, right and bottom."""
PART = re.compile(r"#(-?\d+),(-?\d+),(-?\d+),(-?\d+)\Z", re.ASCII)

Edges = tuple[int, ...]
WHOLE: Edges = (-1, -1, -1, -1)
"""The edges that stand for the whole image in a table."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def split_part(location: str) -> tuple[str, Edges]:
    """Split the location of an image into the path of the file and the edges of the part, () for the whole image.

    >>> split_part("photo.jpg#10,20,110,220"), split_part("photo.jpg")
    (('photo.jpg', (10, 20, 110, 220)), ('photo.jpg', ()))
    """
    match = PART.search(location) if "#" in location else None
    return (location[: match.start()], tuple(map(int, match.groups()))) if match else (location, ())


def name_part(path: str, edges: Sequence[int]) -> str:
    """Return the location of a part of an image; for the edges of `WHOLE`, the path itself."""
    return path if (*edges,) == WHOLE else f"{path}#{','.join(map(str, edges))}"


def parse_edges(cells: Sequence[Any], place: str, *, rounds: bool = False) -> Edges:
    """Parse the cells of the four `COLUMNS`, such as "10" or 10.0, -> the edges, `WHOLE` if all are empty.

    ``rounds`` rounds the numbers to whole ones, as Pillow's ``crop`` does.

    Raises:
        InputError: if the cells aren't those of a box; ``place`` begins the line.
    """
    texts = [str(cell).strip() for cell in cells]
    if not any(texts):
        return WHOLE
    try:
        values = [float(round(float(text)) if rounds else text) for text in texts]
        left, top, right, bottom = map(int, values)
        if values == [left, top, right, bottom] and 0 <= left < right and 0 <= top < bottom:
            return left, top, right, bottom
    except (ValueError, OverflowError):  # no numbers, not four, NaN or infinite
        pass
    raise InputError(
        f"{place}: the box {printable(','.join(texts))}, expected x_1,y_1,x_2,y_2 in whole pixels, 0 <= x_1 < x_2 and "
        "0 <= y_1 < y_2; without them it is the whole image"
    )


def find_part(edges: Edges, height: int, width: int, margin: float = 0.0) -> Box:
    """Return the box with some edges, () for all, in an image of height x width, as far as it goes with a margin.

    ``margin`` is that at each side, as a fraction of the box's width and height. A box that isn't inside of the image
    raises a `RefusedFileError`.
    """
    left, top, right, bottom = edges or (0, 0, width, height)
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise RefusedFileError(f"the box {left},{top},{right},{bottom} isn't inside of its {width} x {height} pixels")
    x, y = round(margin * (right - left)), round(margin * (bottom - top))
    left, top = max(0, left - x), max(0, top - y)
    return Box(top, left, min(height, bottom + y) - top, min(width, right + x) - left)
