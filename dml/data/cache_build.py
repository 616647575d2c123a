import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dml.data.cache import FORMAT, CacheFolder, Files, description
from dml.data.images import ImageFile
from dml.data.prepare import CheckedImage
from dml.data.processes import in_processes
from dml.data.transforms import Resize
from dml.ops.errors import InputError
from dml.ops.files import replacing

CHUNK = 64  # images that are written between two lines of the progress file


def build_cache(
    folder: CacheFolder,
    resize: Resize,
    images: Mapping[str, CheckedImage],
    *,
    processes: int,
    advance: Callable[[int], None],
) -> Files:
    """Writes a cache of images, goes on with an unfinished one of the same images, or leaves a finished one.

    Args:
        folder: where to; it exists.
        resize: what is done to the images.
        images: by their paths; those that can't be read have an empty place.
        processes: how many share the work.
        advance: is told how many more images are done.

    Raises:
        InputError: if the disk is too small, or an image has changed since it was checked.
    """
    files = folder.files(resize)
    index = _index_of(folder, resize, images)
    if _is_finished(files, index):
        advance(len(images))
        return files
    plan = _digest(index)
    done = _chunks_done(files, plan, description(index)["bytes"])
    files.index.unlink(missing_ok=True)
    if not done:
        _allocate(files.pixels, description(index)["bytes"])
    chunks = [*_chunks(files.pixels, resize, [*images], index)]
    advance(sum(len(chunk.images) for chunk in chunks if chunk.number in done))
    with replacing(files.progress) as partial:  # a line that a kill has cut short goes
        partial.write_text("".join(f"{line}\n" for line in (plan, *done)))
    left = [chunk for chunk in chunks if chunk.number not in done]
    with files.progress.open("a") as progress:
        for number in in_processes(_write, left, processes):
            progress.write(f"{number}\n")
            progress.flush()
            advance(len(chunks[number].images))
    with replacing(files.index) as partial:
        pq.write_table(index, partial)
    files.progress.unlink()
    return files


class _Chunk(NamedTuple):
    number: int
    pixels: Path
    resize: Resize
    images: list[tuple[str, int, tuple[int, int]]]
    """Path, offset and shape of each; a shape of (0, 0) is left out."""


def _index_of(folder: CacheFolder, resize: Resize, images: Mapping[str, CheckedImage]) -> pa.Table:
    shapes = [resize.shape(image.height, image.width) if not image.error else (0, 0) for image in images.values()]
    height, width = np.array(shapes, dtype=np.int64).reshape(-1, 2).T
    ends = np.cumsum(3 * height * width)
    columns = {
        "path": pa.array(folder.names([*images]), pa.string()),
        "bytes": pa.array([image.bytes for image in images.values()], pa.int64()),
        "mtime_ns": pa.array([image.mtime_ns for image in images.values()], pa.int64()),
        "offset": ends - 3 * height * width,
        "height": height,
        "width": width,
    }
    made = {"format": FORMAT, "mode": resize.mode, "size": resize.size, "bytes": int(ends[-1]) if len(ends) else 0}
    return pa.table(columns).replace_schema_metadata({"dml": json.dumps(made)})


def _is_finished(files: Files, index: pa.Table) -> bool:
    return (
        files.index.exists()
        and files.pixels.exists()
        and files.pixels.stat().st_size == description(index)["bytes"]
        and pq.read_table(files.index).equals(index, check_metadata=True)
    )


def _digest(index: pa.Table) -> str:
    """What tells an unfinished cache of these images from one of others."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, index.schema) as stream:
        stream.write_table(index)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _chunks_done(files: Files, plan: str, size: int) -> list[int]:
    if not files.progress.exists() or not files.pixels.exists() or files.pixels.stat().st_size != size:
        return []
    begun, *lines = files.progress.read_text().split("\n")[:-1]  # what follows the last line's end was cut short
    return sorted({int(line) for line in lines}) if begun == plan else []


def _allocate(path: Path, size: int) -> None:
    """A new file of zeros, which takes no room yet; one of that name that is being read stays as it is until then."""
    path.unlink(missing_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise InputError(
            f"{path}: the cache takes {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; "
            "data.cache=FOLDER puts it elsewhere"
        )
    with path.open("wb") as file:
        file.truncate(size)


def _chunks(pixels: Path, resize: Resize, paths: list[str], index: pa.Table) -> Iterator[_Chunk]:
    offsets, heights, widths = (index[name].to_pylist() for name in ("offset", "height", "width"))
    images = [*zip(paths, offsets, zip(heights, widths, strict=True), strict=True)]
    for number, first in enumerate(range(0, len(images), CHUNK)):
        yield _Chunk(number, pixels, resize, images[first : first + CHUNK])


def _write(chunk: _Chunk) -> int:
    """Writes the images of a chunk to the disk -> its number."""
    with chunk.pixels.open("r+b") as file:
        for path, offset, shape in chunk.images:
            if not shape[0]:
                continue
            image = chunk.resize(ImageFile(path)).permute(1, 2, 0).numpy()
            if image.shape[:2] != shape:
                raise InputError(f"image {path}: has changed while the cache was made; run it again")
            file.seek(offset)
            file.write(image.tobytes())
        file.flush()
        os.fsync(file.fileno())
    return chunk.number
