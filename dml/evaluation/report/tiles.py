"""The small pictures of a page, on one sheet."""

from base64 import b64encode
from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageOps

from dml.evaluation.sheets.pictures import ReadPicture

INNER, EDGE = 64, 1
"""Pixels of a picture's side and of the margin around it: browsers blend the edges of neighbouring scaled tiles."""
CELL = INNER + 2 * EDGE
COLUMNS = 64
"""Pictures in a row."""
MOST_ROWS = 16_383 // CELL
"""Rows of a sheet: 248, of 15,872 pictures. WebP images have at most 16,383 pixels a side."""
PAPER = "#FFFFFF"
QUALITY = 75


class Tile(NamedTuple):
    """The position of a picture on the sheet."""

    column: int
    row: int


class Tiles:
    """A sheet of small pictures, which holds each picture once."""

    def __init__(self) -> None:
        self._number_by_path: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._number_by_path)

    def number(self, path: str) -> int:
        """Return the number of a picture on the sheet; a new picture is added."""
        return self._number_by_path.setdefault(path, len(self._number_by_path))

    def place(self, path: str) -> Tile:
        """Return the position of a picture on the sheet; a new picture is added."""
        row, column = divmod(self.number(path), COLUMNS)
        return Tile(column, row)

    @property
    def rows(self) -> int:
        """The number of rows, at least two: in CSS the position of a background in percent needs two."""
        return max(2, -(-len(self._number_by_path) // COLUMNS))

    def encode_sheet(self, read: ReadPicture) -> str:
        """Read all pictures, draw the sheet and return it as the data URI of a WebP image."""
        sheet = Image.new("RGB", (COLUMNS * CELL, self.rows * CELL), PAPER)
        for path, number in self._number_by_path.items():
            picture = Image.fromarray(read(path).permute(1, 2, 0).contiguous().numpy())
            fitted = ImageOps.pad(picture, (INNER, INNER), Image.Resampling.LANCZOS, color=PAPER)
            row, column = divmod(number, COLUMNS)
            sheet.paste(fitted, (column * CELL + EDGE, row * CELL + EDGE))
        encoded = BytesIO()
        sheet.save(encoded, format="WEBP", quality=QUALITY, method=4)
        return f"data:image/webp;base64,{b64encode(encoded.getvalue()).decode()}"
