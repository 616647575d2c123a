"""What a data set's folder has to look like, and lists read from it with errors that name file and line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dml.ops.errors import InputError
from dml.ops.paths import expand_home


@dataclass(frozen=True)
class Layout:
    """The official layout of a data set, for the one line that a user gets who has another.

    Args:
        name: of the data set.
        tree: the files and folders that its root holds, in words.
        page: the address where it is published.
    """

    name: str
    tree: str
    page: str

    def root(self, root: str | Path | None) -> Path:
        """The folder.

        Raises:
            InputError: if none is given, or there is none.
        """
        if root is None:
            raise InputError(f"dataset.root: give the folder of {self}")
        folder = expand_home(root)
        if not folder.is_dir():
            raise InputError(f"dataset.root={root}: no such folder; give that of {self}")
        return folder

    def find(self, root: Path, *candidates: str) -> Path:
        """The first of the files or folders that is there.

        Raises:
            InputError: if none is.
        """
        for candidate in candidates:
            if (root / candidate).exists():
                return root / candidate
        raise InputError(f"dataset.root={root}: no {' or '.join(candidates)} in it; give the folder of {self}")

    def __str__(self) -> str:
        return f"{self.name}, which holds {self.tree} ({self.page})"


def lines_of(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, with or without a byte order mark, whatever system ended them.

    Raises:
        InputError: if the file isn't text.
    """
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file ({error.reason} at byte {error.start})") from error


def rows_of(
    path: Path, columns: int, *, skip: int = 0, header: str = "", separator: str | None = None
) -> Iterator[list[str]]:
    """The lines of a list as ``columns`` strings each; empty lines are passed over.

    Args:
        path: the text file, as `lines_of` reads it.
        columns: how many a line has; what stands beyond the last separator belongs to the last.
        skip: lines at its head.
        header: what the last of these says, blanks aside; empty: it isn't looked at.
        separator: None is any run of blanks.

    Raises:
        InputError: if a line has fewer columns, the header is another, or the file isn't text.
    """
    lines = lines_of(path)
    if header and (found := " ".join("".join(lines[skip - 1 : skip]).split())) != header:
        raise InputError(f"{path}, line {skip}: {found!r}, expected the header {header!r}")
    for number, line in enumerate(lines[skip:], skip + 1):
        if not line.strip():
            continue
        cells = line.strip().split(separator, columns - 1)
        if len(cells) < columns:
            raise InputError(f"{path}, line {number}: {line.strip()!r}, expected {columns} columns")
        yield cells


def whole_number(cell: str, path: Path, what: str) -> int:
    """A cell as an integer that 32 bits hold.

    Raises:
        InputError: if it is none.
    """
    try:
        number = int(cell)
    except ValueError as error:
        raise InputError(f"{path}: {what} {cell!r}, expected a whole number") from error
    if abs(number) >= 2**31:
        raise InputError(f"{path}: {what} {cell!r} is too large to be one")
    return number
