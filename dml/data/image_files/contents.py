"""The bytes of image files, in folders or in archives, and stamps that tell whether a file has changed.

``archive.zip/member`` and ``archive.tar/member`` name members; tar files are those of the WebDataset layout.
"""

import hashlib
import lzma
import os
import posixpath
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence, Set
from errno import ENOENT
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dml.data.image_files.parts import split_part
from dml.runtime.reading import RefusedFileError, check_regular, check_size, read_regular

ARCHIVES = (".zip", ".tar")
"""The endings of the archives whose members have paths."""
MEMBER = re.compile(r"\.(?:zip|tar)(?=/)")
DAMAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError),
    RuntimeError,  # for an encrypted member, and as NotImplementedError for a compression that zipfile doesn't know
)
"""The errors that tell of an archive, or of a member, that is damaged or can't be unpacked."""

Stamp = tuple[int, int, int, int]
"""Size of a file in bytes, when it was last written, its inode, and when it last changed, which no program can set."""


class TarEntry(NamedTuple):
    """Where the bytes of a tar file's member lie."""

    offset: int
    size: int


class TarIndex(NamedTuple):
    """The content of the headers of a tar file.

    Args:
        entries: position of the bytes of each member that can be read, by the member's name.
        unread: names of the members that can't be read, by their kind: "symbolic link", "broken hard link" for one to
            no file in front of it, or "sparse file".
    """

    entries: dict[str, TarEntry]
    unread: dict[str, list[str]]


def split_member(path: str) -> tuple[str, str]:
    """Split the path of a member into that of the archive and the member's name, which is empty if it is no such path.

    >>> split_member("photos.zip/cats/1.jpg"), split_member("photos/1.jpg")
    (('photos.zip', 'cats/1.jpg'), ('photos/1.jpg', ''))
    """
    ends = [match.end() for match in MEMBER.finditer(path)]
    for end in ends:
        if end == ends[-1] or not os.path.isdir(path[:end]):  # a folder may have such a name too
            return path[:end], path[end + 1 :]
    return path, ""


def read_member(archive: str, member: str, max_bytes: int, option: str) -> bytes:
    """Read a member of an archive.

    Raises:
        KeyError: if there is no such member.
        RefusedFileError: if the member is larger, or the archive isn't a regular file.
        FileNotFoundError: if there is no such archive.
        one of `DAMAGES`: if the archive or the member is damaged, or the member can't be unpacked.
    """
    stamp = _check_stamp(archive)
    if not archive.endswith(".tar"):
        return read_zip_member(_open_zip(archive, stamp, os.getpid()), member, max_bytes, option)
    entry = _index_tar(archive, stamp).entries[member]
    check_size(entry.size, max_bytes, option)
    with open(archive, "rb", buffering=0) as file:
        file.seek(entry.offset)
        content = file.read(entry.size)
    if len(content) < entry.size:
        raise tarfile.ReadError(f"it ends within {member}")
    return content


def describe_archive_damage(error: Exception) -> str:
    """Return in a few words what one of the `DAMAGES` tells of an archive."""
    if isinstance(error, NotImplementedError):
        return "the archive has a compression that isn't read"
    if isinstance(error, RuntimeError):
        return "the archive is encrypted"
    return "the archive is damaged"


def read_zip_member(archive: zipfile.ZipFile, member: str, max_bytes: int, option: str) -> bytes:
    """Read a member of an open zip file; see `read_member`."""
    entry = archive.getinfo(member)
    check_size(entry.file_size, max_bytes, option)
    with archive.open(entry) as file:
        return file.read(entry.file_size)  # without a number, a member that understates its size is unpacked as a whole


def measure_member(archive: str, member: str) -> int:
    """Return the size of a member in bytes, unpacked; the errors are those of `read_member`."""
    if archive.endswith(".tar"):
        return index_tar(archive).entries[member].size
    return _open_zip(archive, _check_stamp(archive), os.getpid()).getinfo(member).file_size


def list_members(archive: str) -> Set[str]:
    """Return the names of an archive's members; the errors are those of `read_member`."""
    if archive.endswith(".tar"):
        return index_tar(archive).entries.keys()
    return _open_zip(archive, _check_stamp(archive), os.getpid()).NameToInfo.keys()


def index_tar(archive: str) -> TarIndex:
    """Find the regular files in a tar file, which is read once from its beginning to its end, without their content.

    A hard link is the file that it names, which has to stand in front of it; of files with the same name, the last one
    counts, as for ``tar``. The file may not be compressed: its members couldn't be read in any order.

    Raises:
        FileNotFoundError, RefusedFileError: if there is no such file, or it isn't a regular one.
        tarfile.TarError: if it is damaged, or compressed.
    """
    return _index_tar(archive, _check_stamp(archive))


def _check_stamp(archive: str) -> Stamp:
    return _make_stamp(check_regular(archive))


@cache  # a data set has all its archives in use; forked workers inherit what is known
def _index_tar(archive: str, _: Stamp) -> TarIndex:
    """Read the headers of a tar file, see `index_tar`; a file that has changed has another stamp."""
    entries: dict[str, TarEntry] = {}
    unread: dict[str, list[str]] = {}
    end = -1
    with tarfile.open(archive, "r:") as file:
        for member in file:
            if member.offset <= end:  # a header with a negative size leads back to an earlier one, again and again
                raise tarfile.ReadError(f"{member.name} stands at byte {member.offset}, before the one in front of it")
            end = member.offset
            file.members = []  # type: ignore[attr-defined]  # they would take a kilobyte each
            name = posixpath.normpath(member.name)
            target = posixpath.normpath(member.linkname) if member.islnk() else None
            if member.isreg() and not member.issparse():
                entries[name] = TarEntry(member.offset_data, member.size)
            elif target in entries:
                entries[name] = entries[target]
            elif kind := _describe_unread_kind(member):
                unread.setdefault(kind, []).append(name)
        _check_tar_end(file)
    return TarIndex(entries, unread)


def _describe_unread_kind(member: tarfile.TarInfo) -> str:
    """Return the kind of a member that can't be read; an empty string for a folder, a pipe or a device."""
    if member.issym():
        return "symbolic link"
    if member.islnk():
        return "broken hard link"
    return "sparse file" if member.isreg() else ""


def _check_tar_end(file: tarfile.TarFile) -> None:
    """Make sure that a tar file that was read to its last member ends there as tar files do: with zeros.

    Behind its first member, `tarfile` takes a header that is damaged or cut off for the end.
    """
    stream: Any = file.fileobj
    stream.seek(file.offset)
    zeros = 0
    while (rest := stream.read(2**20)) and not any(rest):
        zeros += len(rest)
    if rest or zeros < tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"it is damaged or cut off at byte {file.offset}, behind its last member")


@lru_cache(maxsize=8)
def _open_zip(path: str, _: Stamp, process: int) -> zipfile.ZipFile:  # noqa: ARG001
    """Open an archive once a process: forked workers that share a file handle would share its position too.

    A file that has been replaced has another stamp, and is opened anew.
    """
    return zipfile.ZipFile(path)


MISSING: Stamp = (-1, -1, -1, -1)
"""The stamp of a file that doesn't exist."""
UNREADABLE = (OSError, RefusedFileError, *DAMAGES)
"""The errors of `read_content`."""
MAX_BYTES = 512 << 20
OPTION = "data.max_image_bytes"
"""The key of the configuration that sets the limit on image files."""


def read_content(path: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read an image file, or the member of an archive that ``archive.zip/member`` or ``archive.tar/member`` names.

    Raises:
        FileNotFoundError: if there is no such file or member.
        RefusedFileError: if it isn't a regular file, or is too large.
        one of `dml.data.image_files.contents.DAMAGES`: if the archive or its member is damaged, or the member can't be
            unpacked.
    """
    path, _ = split_part(path)
    archive, member = split_member(path)
    if not member or os.path.exists(path):
        return read_regular(path, max_bytes, OPTION)
    try:
        return read_member(archive, member, max_bytes, OPTION)
    except KeyError as error:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), path) from error


def hash_content(path: str, max_bytes: int = MAX_BYTES, content: bytes | None = None) -> str:
    """Return the SHA-256 of what `read_content` reads, or has read, and of a part's box; "" for what can't be read."""
    box = path.removeprefix(split_part(path)[0]).encode()
    try:
        return hashlib.sha256((read_content(path, max_bytes) if content is None else content) + box).hexdigest()
    except UNREADABLE:
        return ""


def read_stamps(paths: Iterable[str]) -> NDArray[np.int64]:
    """Read the stamp of each file; times are in nanoseconds.

    A file whose stamp is unchanged is assumed to be unchanged. A member of an archive has the stamp of the archive.

    Returns:
        The stamps (N, 4); `MISSING` for a file that doesn't exist.
    """
    archive_stamps: dict[str, Stamp] = {}
    stamps = []
    for path, _ in map(split_part, paths):
        stamp = _read_stamp(path)
        archive, member = split_member(path)
        if stamp == MISSING and member:
            stamp = archive_stamps[archive] = archive_stamps.get(archive) or _read_stamp(archive)
        stamps.append(stamp)
    return np.array(stamps, dtype=np.int64).reshape(-1, 4)


def find_changed(paths: Sequence[str], files: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Compare files with what is known (N, 5), stamp and `shorten_hash` -> which have changed (N,), what is now.

    Where only the inode or the time of the change is another, as after a copy, the content decides.
    """
    now = np.column_stack([read_stamps(paths), files[:, 4]])
    for row in np.flatnonzero((now[:, :2] == files[:, :2]).all(axis=1) & (now != files).any(axis=1)).tolist():
        now[row, 4] = shorten_hash(hash_content(paths[row]))
    return (now != files)[:, [0, 1, 4]].any(axis=1), now


def shorten_hash(sha256: str) -> int:
    """Return the first 8 bytes of a SHA-256 as a number; 0 for "", which stands for what can't be read."""
    return int.from_bytes(bytes.fromhex(sha256[:16]), "big", signed=True)


def read_sizes(paths: Iterable[str]) -> list[int]:
    """Return the size in bytes of each file, or unpacked member of an archive; -1 for one that can't be read."""
    return [_read_size(path) for path, _ in map(split_part, paths)]


def _read_size(path: str) -> int:
    archive, member = split_member(path)
    try:
        return measure_member(archive, member) if member and not os.path.exists(path) else os.stat(path).st_size
    except (KeyError, *UNREADABLE):
        return MISSING[0]


def _read_stamp(path: str) -> Stamp:
    try:
        return _make_stamp(os.stat(path))
    except OSError:
        return MISSING


def _make_stamp(state: os.stat_result) -> Stamp:
    return state.st_size, state.st_mtime_ns, state.st_ino & (2**63 - 1), state.st_ctime_ns
