"""Sheets of pictures as PNG files: queries with their nearest neighbours, and titled rows of pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from dml.ops.errors import InputError
from dml.ops.escaping import printable

Pixels = Tensor | npt.NDArray[Any]
"""A picture: uint8 (H, W, 3), or a tensor (3, H, W) of uint8 or of floats from 0 to 1."""

# Okabe and Ito's green and Tol's red differ for every colour vision: their CIELAB distance is at least 33 in simulated
# protanopia and deuteranopia, where it is 20 for common greens and reds. Every frame has a mark as well.
CORRECT, WRONG = "#009E73", "#CC3311"
PAPER, INK, QUERY = "#FFFFFF", "#4A4A4A", "#C4C4C4"
MARGIN, SPACE, GAP, TEXT, LINE = 20, 10, 22, 14, 30
"""Pixels; LINE is the height of the header and of the legend."""
FRAME, CORNER, BADGE = 5, 8, 9
"""Pixels: the thickness of a frame, the radius of its corners, and the radius of the mark."""
FINE = 4
"""The factor by which shapes are drawn larger before they are scaled down, because PIL draws without smoothing."""
SMALLEST_TILE = 32
COMPRESSION = 3
"""The level of zlib: a sheet of photographs takes half of the time of the default level, and 2 % more bytes."""
WRITER = ("Software", "dml")
"""What tells the files of contact sheets from other pictures: a key and its text among the facts of the PNG file."""


def draw_retrieval_sheet(
    rows: Sequence[tuple[Pixels, Sequence[tuple[Pixels, bool]]]], path: str | Path, *, width: int = 800
) -> None:
    """Write a PNG with a line for each query: the query and its nearest neighbours.

    Neighbours of the query's class have a green frame and a tick, others a red frame and a cross. Each picture is
    fitted into a square tile, whose size follows from the width and the longest line. The same input gives the same
    file.

    Args:
        rows: pairs of a query and its neighbours, nearest first; a neighbour is a pair of a picture, and whether it has
            the query's class. Pictures may have any size.
        path: file to write.
        width: width of the sheet in pixels; so many neighbours that they would be too small to see make it wider.

    Raises:
        InputError: if there are no rows, or a picture is not of the type `Pixels`.
    """
    longest = max((len(neighbors) for _, neighbors in rows), default=0)
    if longest < 1:
        raise InputError("retrieval sheet: no query with a neighbour to show")
    width = max(width, 2 * MARGIN + GAP + SMALLEST_TILE + longest * (SMALLEST_TILE + SPACE))
    tile = (width - 2 * MARGIN - GAP - longest * SPACE) // (longest + 1)
    first = width - MARGIN - longest * (tile + SPACE) + SPACE  # what the division leaves over widens the gap
    height = 2 * MARGIN + 2 * LINE + len(rows) * (tile + SPACE) - SPACE
    sheet = Image.new("RGB", (width, height), PAPER)
    _write_header(sheet, first)
    for i, (query, neighbors) in enumerate(rows):
        top = MARGIN + LINE + i * (tile + SPACE)
        _paste(sheet, query, (MARGIN, top), tile, None)
        for j, (neighbor, correct) in enumerate(neighbors):
            _paste(sheet, neighbor, (first + j * (tile + SPACE), top), tile, bool(correct))
    _write_legend(sheet, first)
    sheet.save(path, format="PNG", compress_level=COMPRESSION)


def draw_contact_sheet(rows: Sequence[tuple[str, Sequence[Pixels]]], path: str | Path, *, width: int = 800) -> None:
    """Write a PNG with titled rows of pictures.

    Args:
        rows: pairs of a title and the pictures below it.
        path: file to write.
        width: width of the sheet in pixels; so many pictures that they would be too small to see make it wider.

    Raises:
        InputError: if there is no picture.
    """
    longest = max((len(pictures) for _, pictures in rows), default=0)
    if longest < 1:
        raise InputError("contact sheet: no picture to show")
    width = max(width, 2 * MARGIN - SPACE + longest * (SMALLEST_TILE + SPACE))
    tile = (width - 2 * MARGIN + SPACE) // longest - SPACE
    sheet = Image.new("RGB", (width, 2 * MARGIN + len(rows) * (LINE + tile + SPACE) - SPACE), PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    for i, (title, pictures) in enumerate(rows):
        top = MARGIN + i * (LINE + tile + SPACE)
        draw.text((MARGIN, top + LINE / 2), printable(title), fill=INK, font=font, anchor="lm")
        for j, picture in enumerate(pictures):
            _paste(sheet, picture, (MARGIN + j * (tile + SPACE), top + LINE), tile, None)
    facts = PngInfo()
    facts.add_text(*WRITER)
    sheet.save(path, format="PNG", compress_level=COMPRESSION, pnginfo=facts)


def is_contact_sheet(path: str | Path) -> bool:
    """Tell whether a file is one that `draw_contact_sheet` wrote."""
    key, value = WRITER
    try:
        with Image.open(path) as picture:
            return picture.info.get(key) == value
    except (OSError, ValueError, Image.DecompressionBombError):
        return False


def choose_queries(queries: int, count: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Draw ``count`` of the queries uniformly at random, whatever their metrics. -> indices (count,), rising

    Raises:
        InputError: if there are fewer queries than ``count``, or ``count`` is below 1.
    """
    if not 1 <= count <= queries:
        raise InputError(f"count = {count}: expected 1 to {queries}, the number of queries")
    return np.sort(np.random.default_rng(seed).choice(queries, size=count, replace=False)).astype(np.int64)


def _paste(sheet: Image.Image, picture: Pixels, corner: tuple[int, int], tile: int, correct: bool | None) -> None:
    """Paste a picture with its frame: of the colour of a query if ``correct`` is None, otherwise with a mark."""
    colour = QUERY if correct is None else CORRECT if correct else WRONG
    frame = 1 if correct is None else FRAME
    inner = tile - 2 * frame
    fitted = ImageOps.pad(_to_image(picture), (inner, inner), Image.Resampling.LANCZOS, color=PAPER)
    sheet.paste(Image.new("RGB", (tile, tile), colour), corner, _round_corners(tile, CORNER))
    sheet.paste(fitted, (corner[0] + frame, corner[1] + frame), _round_corners(inner, CORNER - frame))
    if correct is not None:
        middle = (corner[0] + tile - BADGE - 1, corner[1] + tile - BADGE - 1)
        _paste_mark(sheet, middle, correct)


def _round_corners(size: int, radius: int) -> Image.Image:
    """Return the mask (size, size) of a square with round corners."""
    mask = Image.new("L", (size * FINE, size * FINE), 0)
    edge = size * FINE - 1
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, edge, edge), radius=radius * FINE, fill=255)
    return mask.resize((size, size), Image.Resampling.BOX)


def _paste_mark(sheet: Image.Image, middle: tuple[int, int], correct: bool) -> None:
    """Paste a disc in the colour of the frame, with a white tick or cross."""
    size = 2 * BADGE
    fine = Image.new("RGBA", (size * FINE, size * FINE), (255, 255, 255, 0))
    draw = ImageDraw.Draw(fine)
    draw.ellipse((0, 0, size * FINE - 1, size * FINE - 1), fill=CORRECT if correct else WRONG)
    tick = [((0.27, 0.52), (0.44, 0.68), (0.74, 0.34))]
    cross = [((0.33, 0.33), (0.67, 0.67)), ((0.67, 0.33), (0.33, 0.67))]
    for stroke in tick if correct else cross:
        points = [(x * size * FINE, y * size * FINE) for x, y in stroke]
        draw.line(points, fill="#FFFFFF", width=2 * FINE, joint="curve")
    mark = fine.resize((size, size), Image.Resampling.BOX)
    sheet.paste(mark, (middle[0] - BADGE, middle[1] - BADGE), mark)


def _write_header(sheet: Image.Image, first: int) -> None:
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    draw.text((MARGIN, MARGIN), "query", fill=INK, font=font)
    draw.text((first, MARGIN), "nearest neighbours, nearest first", fill=INK, font=font)


def _write_legend(sheet: Image.Image, first: int) -> None:
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    x, middle = first, sheet.height - MARGIN - BADGE
    for correct, text in ((True, "same class"), (False, "other class")):
        _paste_mark(sheet, (x + BADGE, middle), correct)
        x += 2 * BADGE + 6
        draw.text((x, middle), text, fill=INK, font=font, anchor="lm")
        x += round(draw.textlength(text, font=font)) + 22


def _to_image(picture: Pixels) -> Image.Image:
    if isinstance(picture, Tensor):
        pixels = picture.detach().cpu()
        if pixels.is_floating_point():
            pixels = (pixels.float().clamp(0, 1) * 255).round().byte()
        array = np.moveaxis(pixels.numpy(), 0, -1) if pixels.ndim == 3 else pixels.numpy()
    else:
        array = picture
    if array.ndim != 3 or array.shape[2] != 3 or not array.size or array.dtype != np.uint8:
        raise InputError(
            f"picture of shape {tuple(array.shape)} and {array.dtype}, expected uint8 (H, W, 3) or (3, H, W)"
        )
    return Image.fromarray(np.ascontiguousarray(array))
