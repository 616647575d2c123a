"""The making of the cache files that `dml.data.prepared.cache` reads, from decoded and resized images."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa

from dml.data.image_files.images import LIMITS, ImageFile
from dml.data.image_files.limits import ImageLimits
from dml.data.prepared.cache import FORMAT, INDEX_SCHEMA, CacheFiles, CacheFolder, PixelFile, read_description
from dml.data.prepared.prepared_files import (
    UnfitFileError,
    checksummed_line,
    delete_file,
    open_file,
    read_lines,
    read_parquet,
    refuse_links,
    replacing_file,
    write_parquet,
)
from dml.data.prepared.verification import CheckedImage
from dml.data.transforms import Resize
from dml.data.worker_processes import run_in_processes
from dml.runtime.errors import InputError
from dml.runtime.escaping import printable
from dml.runtime.filesystem.regular_files import RefusedFileError

CHUNK = 64
"""Number of images that are written between two lines of the progress file."""

logger = logging.getLogger(__name__)

ChunkChecksums = dict[int, list[int]]
"""The CRC-32 of each image of a chunk, 0 for an unreadable image, by the number of the chunk."""


def build_cache(
    folder: CacheFolder,
    resize: Resize,
    images: Mapping[str, CheckedImage],
    *,
    processes: int,
    advance: Callable[[int], None],
    warn: Callable[[str], None] = logger.warning,
    limits: ImageLimits = LIMITS,
) -> CacheFiles:
    """Build a cache of images: start a new one, continue an unfinished one, or keep a finished one of the same images.

    The pixels of an unfinished or finished cache are compared with their checksums; damaged images are decoded again.

    Args:
        folder: folder of the cache. It must exist, and no other process may build a cache in it.
        resize: the step that resizes the images.
        images: result of the check of each image, by path; the cache holds no pixels of unreadable images.
        processes: number of processes that share the work.
        advance: function that is called with a number of images whenever so many more images are done.
        warn: function that is called with a line for each damaged file, and for each image that would be too large when
            it is resized; the cache holds no pixels of such an image.
        limits: largest size of an image file, and of an image.

    Raises:
        InputError: if the disk is too small, an image has changed since it was checked, or there are links in the
            folder.
    """
    refuse_links(folder.path)
    files, index = folder.files(resize), _plan_index(folder, resize, images, limits, warn)
    chunks = [*_plan_chunks(files.pixels, resize, limits, [*images], index)]
    finished = _read_finished(files, index, warn)
    done = _find_intact(files, index, chunks, finished, advance, warn)
    remaining = [chunk for chunk in chunks if chunk.number not in done]
    # A file with a second name may be a backup or a file of the user, which must not be written to.
    if remaining and files.pixels.exists() and files.pixels.stat().st_nlink > 1:
        done, remaining = {}, chunks
    if not finished or (remaining and not done):
        delete_file(files.index)
    if not done:
        _allocate(files.pixels, read_description(index)["bytes"])
    if remaining or not finished:
        done |= _write_chunks(files, _identify_plan(index), done, remaining, processes, advance)
        checksums = [checksum for number in sorted(done) for checksum in done[number]]
        write_parquet(files.index, index.append_column("crc32", pa.array(checksums, pa.int64())))
    delete_file(files.progress)
    return files


class _Chunk(NamedTuple):
    """Images that one process decodes and writes together."""

    number: int
    pixels: Path
    resize: Resize
    limits: ImageLimits
    images: list[tuple[str, int, tuple[int, int]]]
    """Path, offset and shape of each image; an unreadable image has the shape (0, 0)."""


def _plan_index(
    folder: CacheFolder,
    resize: Resize,
    images: Mapping[str, CheckedImage],
    limits: ImageLimits,
    warn: Callable[[str], None],
) -> pa.Table:
    """Compute the index of a cache without the checksums of the pixels, which are known only after decoding."""
    shapes = [_plan_shape(path, image, resize, limits, warn) for path, image in images.items()]
    height, width = np.array(shapes, dtype=np.int64).reshape(-1, 2).T
    ends = np.cumsum(3 * height * width)
    columns = {
        "path": folder.relative_paths([*images]),
        "bytes": [image.bytes for image in images.values()],
        "mtime_ns": [image.mtime_ns for image in images.values()],
        "content": [_first_bytes(image.sha256) for image in images.values()],
        "offset": ends - 3 * height * width,
        "height": height,
        "width": width,
    }
    total = int(ends[-1]) if len(ends) else 0
    settings = {"mode": resize.mode, "size": resize.size, "background": str(limits.color)}
    description = {"format": FORMAT, **settings, "bytes": total}
    checksum_column = INDEX_SCHEMA.get_field_index("crc32")
    schema = INDEX_SCHEMA.remove(checksum_column).with_metadata({"dml": json.dumps(description)})
    return pa.table(columns, schema)


def _plan_shape(
    path: str, image: CheckedImage, resize: Resize, limits: ImageLimits, warn: Callable[[str], None]
) -> tuple[int, int]:
    """Return the height and width of the pixels that the cache holds of an image; (0, 0) if it holds none."""
    if image.error:
        return 0, 0
    shape = resize.shape(image.height, image.width)
    try:
        limits.check_resized((image.height, image.width), shape)
    except RefusedFileError as error:
        warn(f"image {printable(path)}: {error}; not in the cache")
        return 0, 0
    return shape


def _first_bytes(sha256: str) -> int:
    return int.from_bytes(bytes.fromhex(sha256[:16]), "big", signed=True)


def _read_finished(files: CacheFiles, index: pa.Table, warn: Callable[[str], None]) -> ChunkChecksums:
    try:
        stored = read_parquet(files.index)
    except FileNotFoundError:
        return {}
    except UnfitFileError as error:
        warn(f"{error}; its images are decoded again")
        return {}
    is_same = stored.schema.equals(INDEX_SCHEMA) and stored.select(index.column_names).equals(index)
    if not is_same or read_description(stored) != read_description(index):
        return {}
    checksums = stored["crc32"].to_pylist()
    return {i // CHUNK: checksums[i : i + CHUNK] for i in range(0, len(checksums), CHUNK)}


def _identify_plan(index: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, index.schema) as stream:
        stream.write_table(index)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _read_progress(
    files: CacheFiles, plan_id: str, chunks: Sequence[_Chunk], warn: Callable[[str], None]
) -> ChunkChecksums:
    try:
        lines, damaged = read_lines(files.progress)
    except FileNotFoundError:
        return {}
    except UnfitFileError as error:
        warn(f"{error}; all images are decoded again")
        return {}
    if damaged:
        warn(f"{files.progress}: {damaged} lines were cut short or damaged; their images are decoded again")
    if lines[:1] != [plan_id]:
        return {}
    lengths = {chunk.number: len(chunk.images) for chunk in chunks}
    return {number: checksums for number, checksums in lines[1:] if lengths.get(number) == len(checksums)}


def _find_intact(
    files: CacheFiles,
    index: pa.Table,
    chunks: Sequence[_Chunk],
    finished: ChunkChecksums,
    advance: Callable[[int], None],
    warn: Callable[[str], None],
) -> ChunkChecksums:
    """Return the checksums of the chunks whose stored pixels match them, in a finished or an unfinished cache."""
    try:
        stored = PixelFile(files.pixels)
    except UnfitFileError:
        stored = None
    if stored is None or len(stored) != read_description(index)["bytes"]:
        if finished:
            warn(f"{files.pixels}: can't be read, or isn't as long as its index says; all images are decoded again")
        return {}
    stored_checksums = finished or _read_progress(files, _identify_plan(index), chunks, warn)
    intact: ChunkChecksums = {}
    damaged_paths: list[str] = []
    for chunk in chunks:
        if chunk.number not in stored_checksums:
            continue
        damaged_in_chunk = [
            path
            for (path, offset, shape), checksum in zip(chunk.images, stored_checksums[chunk.number], strict=True)
            if (pixels := stored.read(offset, (*shape, 3))) is None or crc32(pixels.data) != checksum
        ]
        damaged_paths += damaged_in_chunk
        if not damaged_in_chunk:
            intact[chunk.number] = stored_checksums[chunk.number]
            advance(len(chunk.images))
    if damaged_paths:
        images = f"{len(damaged_paths):,} images were damaged, such as {printable(damaged_paths[0])}"
        warn(f"{files.pixels}: the pixels of {images}; decoded again")
    return intact


def _write_chunks(
    files: CacheFiles,
    plan_id: str,
    done: ChunkChecksums,
    remaining: Sequence[_Chunk],
    processes: int,
    advance: Callable[[int], None],
) -> ChunkChecksums:
    """Write the remaining chunks, and after each chunk a line of the progress file; return their checksums."""
    # The progress file is written anew, because a kill may have cut off its last line.
    with replacing_file(files.progress) as partial:
        partial.write_text("".join(checksummed_line(line) for line in (plan_id, *done.items())))
    written: ChunkChecksums = {}
    sizes = {chunk.number: len(chunk.images) for chunk in remaining}
    with open_file(files.progress, os.O_WRONLY | os.O_APPEND) as progress:
        for number, checksums in run_in_processes(_write_chunk, remaining, processes):
            written[number] = checksums
            progress.write(checksummed_line((number, checksums)).encode())
            progress.flush()
            advance(sizes[number])
    return written


def _allocate(path: Path, size: int) -> None:
    """Create a file of zeros, which takes no room on the disk yet.

    A process that has opened an older file of this name goes on reading the older file.
    """
    delete_file(path)
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise InputError(
            f"{path}: the cache takes {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; "
            "data.cache=FOLDER puts it elsewhere"
        )
    with path.open("xb") as file:
        file.truncate(size)


def _plan_chunks(
    pixels: Path, resize: Resize, limits: ImageLimits, paths: list[str], index: pa.Table
) -> Iterator[_Chunk]:
    offsets, heights, widths = (index[name].to_pylist() for name in ("offset", "height", "width"))
    images = [*zip(paths, offsets, zip(heights, widths, strict=True), strict=True)]
    for number, first in enumerate(range(0, len(images), CHUNK)):
        yield _Chunk(number, pixels, resize, limits, images[first : first + CHUNK])


def _write_chunk(chunk: _Chunk) -> tuple[int, list[int]]:
    """Decode, resize and write the images of a chunk; return the number of the chunk and each image's checksum."""
    checksums = [0] * len(chunk.images)
    with open_file(chunk.pixels, os.O_RDWR) as file:
        for i, (path, offset, shape) in enumerate(chunk.images):
            if not shape[0]:
                continue
            image = chunk.resize(ImageFile(path, chunk.limits)).permute(1, 2, 0).numpy()
            if image.shape[:2] != shape:
                raise InputError(f"image {printable(path)}: has changed while the cache was made; run it again")
            file.seek(offset)
            content = image.tobytes()
            file.write(content)
            checksums[i] = crc32(content)
        file.flush()
        os.fsync(file.fileno())
    return chunk.number, checksums
