"""Sheets of pictures as PNG files: queries with their neighbors, and some images of each class."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from dml.data.images import ImageLimits, read_image
from dml.data.split_names import SPLITS
from dml.data.table import ImageTable
from dml.evaluation.per_query import QueryTable
from dml.runtime.errors import InputError
from dml.runtime.files import replacing
from dml.runtime.text import printable

ReadPicture = Callable[[str], Tensor]
"""A function that reads the picture of a path -> (3, H, W) uint8, like `dml.data.images.read_image`."""

Row = tuple[str, Sequence[tuple[str, str]]]
"""The title of a row, and the paths of its pictures with their relations, which are keys of `COLORS`."""

# Okabe and Ito's green and Tol's red differ for every color vision: their CIELAB distance is at least 33 in simulated
# protanopia and deuteranopia, where it is 20 for common greens and reds. Every such frame has a mark as well.
QUERY, SAME, OTHER = "query", "same", "other"  # the relation of a picture: it has the query's class, or another one
COLORS = {"": "#C4C4C4", QUERY: "#4A4A4A", SAME: "#009E73", OTHER: "#CC3311"}
"""The color of a frame by the relation of its picture."""
STROKES: Mapping[str, Sequence[Sequence[tuple[float, float]]]] = {
    SAME: [((0.27, 0.52), (0.44, 0.68), (0.74, 0.34))],
    OTHER: [((0.33, 0.33), (0.67, 0.67)), ((0.67, 0.33), (0.33, 0.67))],
}
"""The strokes of the marks: a tick and a cross."""
PAPER, INK = "#FFFFFF", "#4A4A4A"
MARGIN, SPACE, GAP, TEXT, LINE = 20, 10, 22, 14, 30
"""Pixels; GAP is added behind a query, LINE is the height of a title and of the legend."""
FRAME, CORNER, BADGE = 5, 8, 9
"""Pixels: the thickness of a frame, the radius of its corners, and the radius of the mark."""
FINE = 4
"""The factor by which shapes are drawn larger before they are scaled down, because PIL draws without smoothing."""
SMALLEST_TILE = 32
COMPRESSION = 3
"""The level of zlib: a sheet of photographs takes half of the time of the default level, and 2 % more bytes."""
WRITER = ("Software", "dml")
"""What tells the files of sheets from other pictures: a key and its text among the facts of the PNG file."""


def draw_sheet(
    rows: Sequence[Row],
    path: str | Path,
    read: ReadPicture,
    *,
    width: int = 800,
    legend: Mapping[str, str] | None = None,
) -> None:
    """Write a PNG with titled rows of pictures, with a legend {relation: meaning}. The same input gives the same file.

    Each picture is fitted into a square tile. So many pictures that they would be too small to see make the sheet wider
    than ``width`` pixels. One picture is in memory at a time.
    """
    longest = max((len(pictures) for _, pictures in rows), default=0)
    if longest < 1:
        raise InputError("sheet: no picture to show")
    gap = GAP if any(relation == QUERY for _, pictures in rows for _, relation in pictures) else 0
    width = max(width, 2 * MARGIN - SPACE + gap + longest * (SMALLEST_TILE + SPACE))
    tile = (width - 2 * MARGIN - gap + SPACE) // longest - SPACE
    height = 2 * MARGIN + len(rows) * (LINE + tile + SPACE) - SPACE + (LINE if legend else 0)
    sheet = Image.new("RGB", (width, height), PAPER)
    for i, (title, pictures) in enumerate(rows):
        top, left = MARGIN + i * (LINE + tile + SPACE), MARGIN
        _write(sheet, title, MARGIN, top + LINE // 2)
        for picture, relation in pictures:
            _paste(sheet, read(picture), (left, top + LINE), tile, relation)
            left += tile + SPACE + (gap if relation == QUERY else 0)
    left = MARGIN
    for relation, meaning in (legend or {}).items():
        _paste_mark(sheet, (left + BADGE, height - MARGIN - BADGE), relation)
        left = _write(sheet, meaning, left + 2 * BADGE + 6, height - MARGIN - BADGE) + GAP
    facts = PngInfo()
    facts.add_text(*WRITER)
    sheet.save(path, format="PNG", compress_level=COMPRESSION, pnginfo=facts)


def is_sheet(path: str | Path) -> bool:
    """Tell whether a file is a picture that `draw_sheet` wrote."""
    key, value = WRITER
    try:
        with Image.open(path) as picture:
            return picture.info.get(key) == value
    except (OSError, ValueError, Image.DecompressionBombError):
        return False


def _paste(sheet: Image.Image, pixels: Tensor, corner: tuple[int, int], tile: int, relation: str) -> None:
    """Paste a picture with the frame of its relation, and the mark if there is one."""
    frame = FRAME if relation in STROKES else 1
    inner = tile - 2 * frame
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    fitted = ImageOps.pad(picture, (inner, inner), Image.Resampling.LANCZOS, color=PAPER)
    sheet.paste(Image.new("RGB", (tile, tile), COLORS[relation]), corner, _round_corners(tile, CORNER))
    sheet.paste(fitted, (corner[0] + frame, corner[1] + frame), _round_corners(inner, CORNER - frame))
    if relation in STROKES:
        _paste_mark(sheet, (corner[0] + tile - BADGE - 1, corner[1] + tile - BADGE - 1), relation)


def _round_corners(size: int, radius: int) -> Image.Image:
    """Return the mask (size, size) of a square with round corners."""
    mask = Image.new("L", (size * FINE, size * FINE), 0)
    edge = size * FINE - 1
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, edge, edge), radius=radius * FINE, fill=255)
    return mask.resize((size, size), Image.Resampling.BOX)


def _paste_mark(sheet: Image.Image, middle: tuple[int, int], relation: str) -> None:
    """Paste a disc in the color of the frame, with the white strokes of its relation."""
    side = 2 * BADGE * FINE
    fine = Image.new("RGBA", (side, side), (255, 255, 255, 0))
    draw = ImageDraw.Draw(fine)
    draw.ellipse((0, 0, side - 1, side - 1), fill=COLORS[relation])
    for stroke in STROKES[relation]:
        draw.line([(x * side, y * side) for x, y in stroke], fill="#FFFFFF", width=2 * FINE, joint="curve")
    mark = fine.resize((2 * BADGE, 2 * BADGE), Image.Resampling.BOX)
    sheet.paste(mark, (middle[0] - BADGE, middle[1] - BADGE), mark)


def _write(sheet: Image.Image, text: str, left: int, middle: int) -> int:
    """Write a line of text, and return where it ends."""
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    draw.text((left, middle), printable(text), fill=INK, font=font, anchor="lm")
    return left + round(draw.textlength(printable(text), font=font))


def choose_queries(queries: int, count: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Draw ``count`` of the queries uniformly at random, or all if they are fewer. -> indices, rising"""
    return _choose(np.arange(queries), count, np.random.default_rng(seed))


def draw_queries(
    table: QueryTable, queries: Sequence[int], path: Path, read: ReadPicture, *, neighbors: int, level: int = 0
) -> None:
    """Write a PNG of some queries and their nearest images, with marks for the classes of one level."""
    name, is_other = table.levels[level], table.find_shared_levels(neighbors, slice(level, level + 1))
    rows = []
    for query in queries:
        class_name = table.class_name(int(table.labels[query, level]), level)
        relations = [OTHER if other else SAME for other in is_other[query]]
        found = zip(table.neighbors[query, :neighbors].tolist(), relations, strict=True)
        title = f"{class_name}, {relations.count(SAME)} of {len(relations)}"
        rows.append((title, [(table.paths[query], QUERY), *found]))
    with replacing(path) as partial:
        draw_sheet(rows, partial, read, legend={SAME: f"same {name}", OTHER: f"other {name}"})


def write_contact_sheets(
    table: ImageTable, folder: Path, limits: ImageLimits, *, classes: int, pictures: int, seed: int
) -> None:
    """Write a PNG for each split: some of its classes, chosen blindly, and some images of each."""
    for split, rows in choose_class_rows(table, classes, pictures, seed):
        with replacing(folder / f"sheet_{split}.png") as partial:
            draw_sheet(rows, partial, functools.partial(read_image, limits=limits))


def choose_class_rows(table: ImageTable, classes: int, pictures: int, seed: int) -> Iterator[tuple[str, list[Row]]]:
    """Yield each split that has images, and a row for each of some of its classes, with some images of the class."""
    for split in SPLITS:
        part = table.subset(split)
        if not len(part):
            continue
        rng, labels = np.random.default_rng(seed), part.labels[:, 0]
        chosen_classes = _choose(np.unique(labels), classes, rng)
        chosen_rows = [_choose(np.flatnonzero(labels == number), pictures, rng) for number in chosen_classes]
        yield (
            split,
            [(part.name_class(labels[rows[0]]), [(path, "") for path in part.paths[rows]]) for rows in chosen_rows],
        )


def _choose(values: npt.NDArray[np.int64], count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Choose some of the values at random -> rising."""
    return np.sort(rng.choice(values, size=min(count, len(values)), replace=False))
