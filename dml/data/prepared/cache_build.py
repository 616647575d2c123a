"""The making of the cache files that `dml.data.prepared.cache` reads, from decoded and resized images."""

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from dml.data.image_files.contents import shorten_hash
from dml.data.image_files.images import LIMITS, ImageFile
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import find_part, split_part
from dml.data.prepared.cache import FORMAT, INDEX_SCHEMA, STAMP, CacheFiles, CacheFolder, PixelFile, read_description
from dml.data.prepared.prepared_files import (
    UnfitFileError,
    Warn,
    checksummed_line,
    delete_file,
    open_file,
    read_lines,
    read_parquet_if_fit,
    refuse_links,
    replacing_file,
    write_parquet,
)
from dml.data.prepared.verification import CheckedImage
from dml.data.transforms import Resize
from dml.data.worker_processes import run_in_processes
from dml.runtime.errors import InputError
from dml.runtime.reading import RefusedFileError
from dml.runtime.text import printable

CHUNK = 64
"""Number of images that are written between two lines of the progress file."""

logger = logging.getLogger(__name__)

ChunkChecksums = dict[int, list[int]]
"""The CRC-32 of each image of a chunk, 0 for an unreadable image, by the number of the chunk."""
StoredImage = tuple[str, int, tuple[int, int]]
"""The path of an image, and the offset and shape of its pixels; an unreadable image has the shape (0, 0)."""


def build_cache(
    folder: CacheFolder,
    resize: Resize,
    images: Mapping[str, CheckedImage],
    *,
    processes: int | None,
    advance: Callable[[int], None],
    warn: Warn = logger.warning,
    limits: ImageLimits = LIMITS,
) -> CacheFiles:
    """Build a cache of images: start a new one, continue an unfinished one, or keep a finished one of the same images.

    The pixels of an older cache are compared with their checksums; damaged images are decoded again. The folder must
    exist, and no other process may build a cache in it. ``advance`` is called with a number of images whenever so many
    more are done, and ``warn`` with a line for each damaged file, and for each image that would be too large when it is
    resized. The cache holds no pixels of such images and of unreadable ones.
    """
    refuse_links(folder.path)
    files, index = folder.files(resize), _plan_index(folder, resize, images, limits, warn)
    chunks = _plan_chunks([*images], index)
    is_finished, checksums = _read_checksums(files, index, warn)
    done = _find_intact(files, index, chunks, checksums, advance, warn)
    remaining = [number for number in chunks if number not in done]
    # A file with a second name may be a backup or a file of the user, which must not be written to.
    if remaining and files.pixels.exists() and files.pixels.stat().st_nlink > 1:
        done, remaining = {}, [*chunks]
    if remaining and not (is_finished and done):
        delete_file(files.index)
    if not done:
        _allocate(files.pixels, read_description(index)["bytes"])
    if remaining or not is_finished:
        # The progress file is written anew, because a kill may have cut off its last line.
        with replacing_file(files.progress) as partial:
            partial.write_text("".join(checksummed_line(line) for line in (_identify_plan(index), *done.items())))
        write = functools.partial(_write_chunk, files.pixels, resize, limits)
        with open_file(files.progress, os.O_WRONLY | os.O_APPEND) as progress:
            for line in run_in_processes(write, [(number, chunks[number]) for number in remaining], processes):
                progress.write(checksummed_line(line).encode())
                progress.flush()
                done |= [line]
                advance(len(chunks[line[0]]))
        crc32_column = pa.array([checksum for number in sorted(done) for checksum in done[number]], pa.int64())
        write_parquet(files.index, index.append_column("crc32", crc32_column))
    delete_file(files.progress)
    return files


def _plan_index(
    folder: CacheFolder,
    resize: Resize,
    images: Mapping[str, CheckedImage],
    limits: ImageLimits,
    warn: Warn,
) -> pa.Table:
    """Compute the index of a cache without the checksums of the pixels, which are known only after decoding."""
    shapes = [_plan_shape(path, image, resize, limits, warn) for path, image in images.items()]
    height, width = np.array(shapes, dtype=np.int64).reshape(-1, 2).T
    ends = np.cumsum(3 * height * width)
    columns = {
        "path": folder.relative_paths([*images]),
        **{name: [getattr(image, name) for image in images.values()] for name in STAMP},
        "content": [shorten_hash(image.sha256) for image in images.values()],
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


def _plan_shape(path: str, image: CheckedImage, resize: Resize, limits: ImageLimits, warn: Warn) -> tuple[int, int]:
    """Return the height and width of the pixels that the cache holds of an image; (0, 0) if it holds none."""
    if image.error:
        return 0, 0
    *_, height, width = find_part(split_part(path)[1], image.height, image.width)
    shape = resize.shape(height, width)
    try:
        limits.check_resized((height, width), shape)
    except RefusedFileError as error:
        warn(f"image {printable(path)}: {error}; not in the cache")
        return 0, 0
    return shape


def _plan_chunks(paths: list[str], index: pa.Table) -> dict[int, list[StoredImage]]:
    """Divide the images into chunks, by their numbers."""
    offsets, heights, widths = (index[name].to_pylist() for name in ("offset", "height", "width"))
    images = [*zip(paths, offsets, zip(heights, widths, strict=True), strict=True)]
    return {first // CHUNK: images[first : first + CHUNK] for first in range(0, len(images), CHUNK)}


def _read_checksums(files: CacheFiles, index: pa.Table, warn: Warn) -> tuple[bool, ChunkChecksums]:
    """Return whether there is a finished cache of these files, and the checksums of it or of one of the same images."""
    plan = index.drop_columns([*STAMP[2:]])  # a copied file is the same image
    stored = read_parquet_if_fit(files.index, warn, "decoded again")
    if (
        stored is not None
        and stored.schema.equals(INDEX_SCHEMA)
        and read_description(stored) == read_description(index)
        and stored.select(plan.column_names).equals(plan)
    ):
        checksums, is_finished = stored["crc32"].to_pylist(), stored.select(index.column_names).equals(index)
        return is_finished, {i // CHUNK: checksums[i : i + CHUNK] for i in range(0, len(checksums), CHUNK)}
    lines = read_lines(files.progress, warn, "decoded again")
    return False, dict(lines[1:]) if lines[:1] == [_identify_plan(index)] else {}


def _identify_plan(index: pa.Table) -> str:
    plan, sink = index.drop_columns([*STAMP[2:]]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plan.schema) as stream:
        stream.write_table(plan)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _find_intact(
    files: CacheFiles,
    index: pa.Table,
    chunks: Mapping[int, list[StoredImage]],
    checksums: ChunkChecksums,
    advance: Callable[[int], None],
    warn: Warn,
) -> ChunkChecksums:
    """Return the checksums of the chunks whose stored pixels match them, in a finished or an unfinished cache."""
    if not checksums:
        return {}
    try:
        stored = PixelFile(files.pixels)
    except UnfitFileError:
        stored = None
    if stored is None or len(stored) != read_description(index)["bytes"]:
        warn(f"{files.pixels}: can't be read, or isn't as long as its index says; all images are decoded again")
        return {}
    intact: ChunkChecksums = {}
    damaged: list[str] = []
    for number, images in chunks.items():
        if len(chunk_checksums := checksums.get(number, ())) != len(images):
            continue
        damaged_in_chunk = [
            path
            for (path, offset, shape), checksum in zip(images, chunk_checksums, strict=True)
            if (pixels := stored.read(offset, (*shape, 3))) is None or crc32(pixels.data) != checksum
        ]
        damaged += damaged_in_chunk
        if not damaged_in_chunk:
            intact[number] = checksums[number]
            advance(len(images))
    if damaged:
        count = f"{len(damaged):,} images were damaged, such as {printable(damaged[0])}"
        warn(f"{files.pixels}: the pixels of {count}; decoded again")
    return intact


def _allocate(path: Path, size: int) -> None:
    """Create a file of zeros, which takes no room yet; a process that has opened an older one goes on reading that."""
    delete_file(path)
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise InputError(
            f"{path}: the cache takes {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; "
            "data.cache=FOLDER puts it elsewhere"
        )
    with path.open("xb") as file:
        file.truncate(size)


def _write_chunk(
    pixels: Path, resize: Resize, limits: ImageLimits, chunk: tuple[int, list[StoredImage]]
) -> tuple[int, list[int]]:
    """Decode, resize and write the images of a chunk; return the number of the chunk and each image's checksum."""
    number, images = chunk
    checksums = [0] * len(images)
    with open_file(pixels, os.O_RDWR) as file:
        for i, (path, offset, shape) in enumerate(images):
            if not shape[0]:
                continue
            image = resize(ImageFile(path, limits)).permute(1, 2, 0).numpy()
            if image.shape[:2] != shape:
                raise InputError(f"image {printable(path)}: has changed while the cache was made; run it again")
            content = image.tobytes()
            file.seek(offset)
            file.write(content)
            checksums[i] = crc32(content)
        file.flush()
        os.fsync(file.fileno())
    return number, checksums
