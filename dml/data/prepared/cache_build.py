"""The making of the shards that `dml.data.prepared.cache` reads, from decoded and resized images."""

import functools
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

from dml.data.contents import find_part, read_stamps, shorten_hash, split_part
from dml.data.images import LIMITS, ImageFile, ImageLimits
from dml.data.prepared.cache import CacheFolder, Shard, StoredImage, read_shard, refuse_links
from dml.data.prepared.verification import CheckedImage, Warn
from dml.data.transforms import Resize
from dml.data.worker_processes import run_in_processes
from dml.runtime.errors import InputError
from dml.runtime.files import replacing, write_text
from dml.runtime.reading import RefusedFileError
from dml.runtime.text import printable

FEWEST, MOST = 64, 512
"""The smallest and the largest number of images in a shard; the largest grows, so that shards stay below some 300."""

logger = logging.getLogger(__name__)

Job = tuple[str, str, StoredImage]
"""The name and the location of an image, and what the index shall hold of it."""


def build_cache(
    folder: CacheFolder,
    resize: Resize,
    images: Mapping[str, CheckedImage],
    *,
    processes: int | None,
    advance: Callable[[int], None],
    warn: Warn = logger.warning,
    limits: ImageLimits = LIMITS,
    compare_contents: bool = False,
) -> int:
    """Append shards with the images that no shard has yet -> the number of bytes of all shards.

    Images that were removed or have changed are taken out of their shards, and a shard of which less than half is left
    is made anew, as is a damaged one. The folder must exist, and no other process may build a cache in it. ``advance``
    is called with a number of images whenever so many more are done, and ``warn`` with a line for each damaged shard,
    and for each image that would be too large when it is resized. The cache holds no pixels of such images and of
    unreadable ones.
    """
    refuse_links(folder.path)
    names = folder.relative_paths([*images])
    paths = dict(zip(names, images, strict=True))
    missing = dict[str, StoredImage]()
    for name, (path, image) in zip(names, images.items(), strict=True):
        shape = _plan_shape(path, image, resize, limits, warn)
        missing[name] = StoredImage(*image.stamp, shorten_hash(image.sha256), 0, *shape)
    shards = _keep_shards(folder, resize, str(limits.color), missing, warn, compare_contents=compare_contents)
    advance(len(images) - len(missing))
    size = sum(image.size for image in missing.values())
    if (free := shutil.disk_usage(folder.path).free) < size:
        raise InputError(
            f"{folder.path}: the cache takes {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; "
            "data.cache=FOLDER puts it elsewhere"
        )
    share = -(-len(missing) // (processes or os.cpu_count() or 1))
    step = max(FEWEST, min(share, max(MOST, len(images) // 256)))
    jobs = [(name, paths[name], image) for name, image in missing.items()]
    write = functools.partial(_write_shard, folder.path / f"{resize.mode}-{resize.size}", resize, limits)
    for count in run_in_processes(write, [jobs[i : i + step] for i in range(0, len(jobs), step)], processes):
        advance(count)
    return size + sum(shard.stamp[0] for shard in shards)


def _plan_shape(path: str, image: CheckedImage, resize: Resize, limits: ImageLimits, warn: Warn) -> tuple[int, int]:
    """Return the height and width of the pixels that the cache holds of an image; (0, 0) if it holds none."""
    if image.error:
        return 0, 0
    part = find_part(split_part(path)[1], image.height, image.width)
    shape = resize.shape(part.height, part.width)
    try:
        limits.check_resized((part.height, part.width), shape)
    except RefusedFileError as error:
        warn(f"image {printable(path)}: {error}; not in the cache")
        return 0, 0
    return shape


def _keep_shards(
    folder: CacheFolder,
    resize: Resize,
    background: str,
    missing: dict[str, StoredImage],
    warn: Warn,
    *,
    compare_contents: bool,
) -> list[Shard]:
    """Take what is missing from the shards that are there, and delete all others with what was left unfinished."""
    shards = []
    for path in folder.shard_paths(resize):
        try:
            shard = read_shard(path, background, compare_contents=compare_contents)
        except InputError as error:
            warn(f"{error}; its images are decoded again")
            continue
        shard.images = _select_current(shard.images, missing)
        if not shard.images or 2 * sum(image.size for image in shard.images.values()) < shard.stamp[0]:
            continue
        shards.append(shard)
        for name in shard.images:
            del missing[name]
        if path.read_text() != (index := shard.to_json()):
            write_text(path, index)
    kept = {shard.path.stem for shard in shards}
    for path in [*folder.shard_paths(resize), *folder.shard_paths(resize, "pixels")]:
        if path.stem not in kept:
            path.unlink()
    return shards


def _select_current(stored: dict[str, StoredImage], missing: dict[str, StoredImage]) -> dict[str, StoredImage]:
    """Return the stored images that are as they should be, with the stamps of their files now."""
    current = {}
    for name, image in stored.items():
        now = missing.get(name)
        if now and image._replace(inode=now.inode, ctime_ns=now.ctime_ns, start=0) == now:
            current[name] = now._replace(start=image.start)
    return current


def _write_shard(
    stem: Path, resize: Resize, limits: ImageLimits, images: Sequence[tuple[str, str, StoredImage]]
) -> int:
    """Decode, resize and write images, and then their index -> the number of images."""
    path = stem.with_name(f"{stem.name}.{secrets.token_hex(4)}.json")
    shard = Shard(path, str(limits.color), [], 0, {})
    with replacing(shard.pixels, on_disk=True) as partial, partial.open("wb") as file:
        for name, location, image in images:
            shard.images[name] = image._replace(start=file.tell())
            if image.size:
                pixels = resize(ImageFile(location, limits)).permute(1, 2, 0).contiguous().numpy()
                if pixels.shape[:2] != (image.height, image.width):
                    raise InputError(f"image {printable(location)}: has changed while the cache was made; run it again")
                file.write(pixels.data)
                shard.checksum = crc32(pixels.data, shard.checksum)
    shard.stamp = read_stamps([str(shard.pixels)])[0].tolist()
    write_text(path, shard.to_json())
    return len(images)
