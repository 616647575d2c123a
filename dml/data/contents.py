"""The files of a data set as bytes, images and lists, no larger than a limit; and stamps that tell of their changes.

An image has a location: the path of a file, or ``archive.zip/member`` for a member of a zip file, and behind it the box
of a part of an image, left, top, right and bottom edge in pixels: ``photo.jpg#10,20,110,220``.
"""

import hashlib
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from errno import ENOENT
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError, check_regular, check_size, read_regular
from dml.runtime.text import printable

ARCHIVE = ".zip"
"""The ending of the archives whose members have paths."""
DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    RuntimeError,  # for an encrypted member, and as NotImplementedError for a compression that zipfile doesn't know
)
"""The errors that tell of an archive, or of a member, that is damaged or can't be unpacked."""
UNREADABLE = (OSError, RefusedFileError, *DAMAGES)
"""The errors of `read_content`."""
MAX_BYTES = 512 << 20
_OPTION = "data.max_image_bytes"

Stamp = tuple[int, int, int, int]
"""Size of a file in bytes, when it was last written, its inode, and when it last changed, which no program can set."""
MISSING: Stamp = (-1, -1, -1, -1)
"""The stamp of a file that doesn't exist."""
BOX_COLUMNS = ("x_1", "y_1", "x_2", "y_2")
"""The columns of a list that hold the edges of a box: left, top, right and bottom."""
_PART = re.compile(r"#(-?\d+),(-?\d+),(-?\d+),(-?\d+)\Z", re.ASCII)

Edges = tuple[int, ...]
"""Left, top, right and bottom edge of a part; () is the whole image."""
MAX_LIST_BYTES = 1 << 30
LIST_OPTION = "data.max_list_bytes"
"""The key of the configuration that sets the limit on lists."""

_max_list_bytes = ContextVar("max_list_bytes", default=MAX_LIST_BYTES)


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


def split_member(path: str) -> tuple[str, str]:
    """Split the path of a member into that of the archive and the member's name, which is empty if it is no such path.

    >>> split_member("photos.zip/cats/1.jpg"), split_member("photos/1.jpg")
    (('photos.zip', 'cats/1.jpg'), ('photos/1.jpg', ''))
    """
    ends = [match.end() for match in re.finditer(r"\.zip(?=/)", path)]
    for end in ends:
        if end == ends[-1] or not os.path.isdir(path[:end]):  # a folder may have such a name too
            return path[:end], path[end + 1 :]
    return path, ""


def read_zip_member(archive: zipfile.ZipFile, member: str, max_bytes: int, option: str) -> bytes:
    """Read a member of an open zip file, or raise a KeyError, a RefusedFileError by its size, or one of `DAMAGES`."""
    entry = archive.getinfo(member)
    check_size(entry.file_size, max_bytes, option)
    with archive.open(entry) as file:
        return file.read(entry.file_size)  # without a number, a member that understates its size is unpacked as a whole


def list_members(archive: str) -> Set[str]:
    """Return the names of an archive's members; the errors are those of `read_content`."""
    return _open_zip(archive).NameToInfo.keys()


def _open_zip(archive: str) -> zipfile.ZipFile:
    return _open_stamped_zip(archive, _make_stamp(check_regular(archive)), os.getpid())


@lru_cache(maxsize=8)
def _open_stamped_zip(path: str, _: Stamp, process: int) -> zipfile.ZipFile:  # noqa: ARG001
    """Open an archive once a process, as forked workers would share its position, and anew for another stamp."""
    return zipfile.ZipFile(path)


def read_content(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read an image file, or the member of an archive that ``archive.zip/member`` names.

    It raises a FileNotFoundError; a RefusedFileError for what isn't a regular file, or is too large; and one of
    `DAMAGES` if the archive or its member is damaged.
    """
    path, _ = split_part(path)
    archive, member = split_member(path)
    if not member or os.path.exists(path):
        return read_regular(path, max_bytes, _OPTION)
    try:
        return read_zip_member(_open_zip(archive), member, max_bytes, _OPTION)
    except KeyError as error:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path) from error


def hash_content(path: str, max_bytes: int = MAX_BYTES, content: bytes | None = None) -> str:
    """Return the SHA-256 of what `read_content` reads, or has read, and of a part's box; "" for what can't be read."""
    box = path.removeprefix(split_part(path)[0]).encode()
    try:
        return hashlib.sha256((read_content(path, max_bytes) if content is None else content) + box).hexdigest()
    except UNREADABLE:
        return ""


def shorten_hash(sha256: str) -> int:
    """Return the first 8 bytes of a SHA-256 as a number; 0 for "", which stands for what can't be read."""
    return int.from_bytes(bytes.fromhex(sha256[:16]), "big", signed=True)


def read_stamps(paths: Iterable[str]) -> NDArray[np.int64]:
    """Read the stamp of each file (N, 4), or of the archive of a member, in nanoseconds; `MISSING` without a file."""
    archive_stamps: dict[str, Stamp] = {}
    stamps = []
    for path, _ in map(split_part, paths):
        stamp = _read_stamp(path)
        archive, member = split_member(path)
        if stamp == MISSING and member:
            stamp = archive_stamps[archive] = archive_stamps.get(archive) or _read_stamp(archive)
        stamps.append(stamp)
    return np.array(stamps, dtype=np.int64).reshape(-1, 4)


def find_changed(paths: Sequence[str], files: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Compare files with what is known of them (N, 5), stamp and `shorten_hash` -> which have changed (N,).

    Where only the inode or the time of the change is another, as after a copy, the content decides.
    """
    now = np.column_stack([read_stamps(paths), files[:, 4]])
    for row in np.flatnonzero((now[:, :2] == files[:, :2]).all(axis=1) & (now != files).any(axis=1)).tolist():
        now[row, 4] = shorten_hash(hash_content(paths[row]))
    has_changed: NDArray[np.bool_] = (now != files)[:, [0, 1, 4]].any(axis=1)
    return has_changed


def read_sizes(paths: Iterable[str]) -> list[int]:
    """Return the size in bytes of each file, or unpacked member of an archive; -1 for one that can't be read."""
    return [_read_size(split_part(path)[0]) for path in paths]


def _read_size(path: str) -> int:
    archive, member = split_member(path)
    try:
        is_member = member and not os.path.exists(path)
        return _open_zip(archive).getinfo(member).file_size if is_member else os.stat(path).st_size
    except (KeyError, *UNREADABLE):
        return MISSING[0]


def _read_stamp(path: str) -> Stamp:
    try:
        return _make_stamp(os.stat(path))
    except OSError:
        return MISSING


def _make_stamp(state: os.stat_result) -> Stamp:
    return state.st_size, state.st_mtime_ns, state.st_ino & (2**63 - 1), state.st_ctime_ns


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
    except (RefusedFileError, MemoryError, OSError) as error:
        fault = "the memory ran out while it was read" if isinstance(error, MemoryError) else str(error)
        if isinstance(error, OSError):
            fault = f"cannot be read ({error.strerror or error})"
        raise InputError(f"{printable(path)}: {fault}") from error
