from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageOps
from torch import Tensor

ReadPicture = Callable[[str], Tensor]
"""Path -> (3, H, W) uint8, as `dml.data.images.read_image`."""

INNER, EDGE = 64, 1  # pixels; a browser that scales a tile blends its edge with the next tile's
CELL = INNER + 2 * EDGE
COLUMNS = 64  # WebP ends at 16,383 pixels: 248 rows, 15,872 pictures
PAPER = "#FFFFFF"
QUALITY = 75


class Tile(NamedTuple):
    """A picture's place on the sheet."""

    column: int
    row: int


class Tiles:
    """The small pictures of a page, each once, on one sheet."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def index(self, path: str) -> int:
        """The number of a picture, which puts it on the sheet."""
        return self._places.setdefault(path, len(self._places))

    def at(self, path: str) -> Tile:
        """The place of a picture, which puts it on the sheet."""
        row, column = divmod(self.index(path), COLUMNS)
        return Tile(column, row)

    @property
    def rows(self) -> int:
        """How many rows the sheet has; at least two, which CSS's percentages of a background need."""
        return max(2, -(-len(self._places) // COLUMNS))

    def sheet(self, read: ReadPicture) -> str:
        """The sheet as a data URI of a WebP image."""
        sheet = Image.new("RGB", (COLUMNS * CELL, self.rows * CELL), PAPER)
        for path, number in self._places.items():
            picture = Image.fromarray(read(path).permute(1, 2, 0).contiguous().numpy())
            fitted = ImageOps.pad(picture, (INNER, INNER), Image.Resampling.LANCZOS, color=PAPER)
            row, column = divmod(number, COLUMNS)
            sheet.paste(fitted, (column * CELL + EDGE, row * CELL + EDGE))
        encoded = BytesIO()
        sheet.save(encoded, format="WEBP", quality=QUALITY, method=4)
        return f"data:image/webp;base64,{b64encode(encoded.getvalue()).decode()}"
