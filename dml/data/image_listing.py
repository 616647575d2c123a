"""The image files in a folder and in all folders below it, or in an archive."""

import fnmatch
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from dml.data.contents import ARCHIVE, UNREADABLE, list_members
from dml.data.images import HEIF_SUFFIXES, reads_heif
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable

SUFFIXES = (
    *(".apng", ".bmp", ".dib", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo"),
    *(".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
UNREAD_SUFFIXES = (
    *(".avif", ".heic", ".heif", ".hif", ".jp2", ".jxl", ".psd", ".svg", ".tga"),
    *(".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"),
)
"""Endings of image files that aren't read; those of HEIF files are, if pillow-heif is installed."""
NO_IMAGE_SUFFIXES = (
    *(".cfg", ".css", ".csv", ".doc", ".docx", ".htm", ".html", ".ini", ".ipynb", ".js", ".json", ".jsonl", ".log"),
    *(".md", ".pdf", ".py", ".rst", ".sh", ".toml", ".tsv", ".txt", ".xls", ".xlsx", ".xml", ".xmp", ".yaml", ".yml"),
    *(".ckpt", ".cls", ".db", ".h5", ".mat", ".npy", ".npz", ".onnx", ".parquet", ".pkl", ".pt", ".safetensors"),
    *(".aae", ".avi", ".m4a", ".mov", ".mp3", ".mp4", ".wav"),
)
"""Endings of files that are no images, and that no warning counts."""
SYSTEM_NAMES = (
    *(".*", "lost+found", "__macosx*", "icon\r", "network trash folder", "temporary items"),  # Unix and macOS
    *("thumbs.db*", "ehthumbs*.db", "desktop.ini", "$recycle.bin", "recycler", "system volume information"),  # Windows
    *("@eadir", "@__thumb", "@tmp", "@recycle", "@recently-snapshot", "#recycle", "#snapshot"),  # NAS
    *("synofile_thumb*", "synophoto_*", "*@synoeastream", "*@synoresource"),  # Synology
    *("*.lrdata", "captureone", "*.cocatalog", "[[]originals]", "zbthumbnail.info", "_vti_cnf", "__pycache__"),
)
"""Patterns, in lower case, of what systems, network disks and programs put beside photographs; hidden names too."""
MODEL_FILES = {"model.json", "model.safetensors"}
"""Files that the folder of a saved model has; the picture beside them is none of the user's."""
MAX_KINDS = 8
"""Number of endings that a warning about files names at most."""

_IS_OF_SYSTEM = re.compile("|".join(map(fnmatch.translate, SYSTEM_NAMES)), re.IGNORECASE)
logger = logging.getLogger(__name__)


def is_passed_over(path: str) -> bool:
    """Tell whether a file is none of the user's: a part of its path has one of `SYSTEM_NAMES`."""
    return any(_IS_OF_SYSTEM.match(name) for name in path.split("/"))


def list_images(folder: Path) -> list[str]:
    """List the image files in a folder and in the folders below it, or in an archive (.zip), sorted by path.

    Archives in a folder aren't opened. `SYSTEM_NAMES` and the folders of saved models are passed over. Warnings count
    the files that aren't read but may be images, the links to folders, and those that lead nowhere.
    """
    is_archive = folder.suffix == ARCHIVE and not os.path.isdir(folder)
    paths_read, unread, dangling = sort_files(_list_archive(folder) if is_archive else _list_below(folder))
    left_out = [describe_unread(unread)] if unread else []
    if dangling:
        links = format_count(len(dangling), "link that leads", "links that lead")
        left_out.append(f"{links} nowhere, such as {describe_dangling(dangling[0])}")
    if not paths_read:
        reason = f"; it holds {'; '.join(left_out)}" if left_out else f" (by suffix: {' '.join(SUFFIXES)})"
        raise InputError(f"{printable(folder)}: no image in it that can be read{reason}")
    for line in left_out:
        logger.warning("left out: %s: %s", printable(folder), line)
    return paths_read


def _list_below(folder: Path) -> list[str]:
    files: list[str] = []
    for parent, folders, names in walk_folders(folder, []):
        if {*names} >= MODEL_FILES:
            folders.clear()
        else:
            files += (os.path.join(parent, name) for name in names)
    return files


def _list_archive(path: Path) -> list[str]:
    try:
        names = list_members(str(path))
    except UNREADABLE as error:
        raise InputError(f"{printable(path)}: cannot be listed ({printable(error)}); unpack it") from error
    return [f"{path}/{name}" for name in names if not name.endswith("/") and not is_passed_over(os.path.normpath(name))]


def list_folder(folder: Path) -> list[str]:
    """List what a folder itself holds under names of images, sorted, as `list_images` does."""
    try:
        return sort_files(f"{folder}/{name}" for name in os.listdir(folder) if not is_passed_over(name))[0]
    except OSError as error:
        _refuse(error)


def walk_folders(root: Path, repeated: list[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the path, folders and files of a folder and of each folder below it, without those of `SYSTEM_NAMES`.

    Links to folders are followed. A folder that several paths lead to is yielded once, and the others are added to
    ``repeated``, with a warning: the images of a class would else be there twice.
    """
    visited: set[str] = set()
    for parent, folders, files in os.walk(root, onerror=_refuse, followlinks=True):
        if (real_path := os.path.realpath(parent)) in visited:  # a link may lead back to a folder above it
            folders.clear()
            repeated.append(parent)
            continue
        visited.add(real_path)
        visible = [name for name in folders if not is_passed_over(name)]
        folders[:] = sorted(visible, key=lambda name: (os.path.islink(os.path.join(parent, name)), name))
        yield parent, folders, [name for name in files if not is_passed_over(name)]
    if repeated:
        links = format_count(len(repeated), "link to a folder that is", "links to folders that are")
        example = printable(repeated[0])
        logger.warning("left out: %s: %s read anyway, such as %s", printable(root), links, example)


def sort_files(paths: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Divide files into images that are read, other files that may be images, and links that lead nowhere; all sorted.

    By its name, a file may be an image unless it ends like text, data or a video. A link that leads nowhere may be
    meant as one to a folder, unless its name ends like an image's.
    """
    images, unread, dangling = list[str](), list[str](), list[str]()
    suffixes = SUFFIXES + HEIF_SUFFIXES if reads_heif() else SUFFIXES
    for path in sorted(paths):
        name = os.path.basename(path).lower()
        if name.endswith(suffixes):
            images.append(path)
        # os.walk counts a link that leads nowhere as a file
        elif not name.endswith(UNREAD_SUFFIXES) and os.path.islink(path) and not os.path.exists(path):
            dangling.append(path)
        elif not name.endswith(NO_IMAGE_SUFFIXES) and name not in ("license", "makefile", "readme"):
            unread.append(path)
    return images, unread, dangling


def describe_unread(paths: list[str]) -> str:
    """Return how many files of which kinds aren't read, the first of them, and what to do."""
    counts = Counter(os.path.splitext(path)[1].lower() or "without an ending" for path in paths)
    kinds = ", ".join(f"{count:,} {printable(suffix)}" for suffix, count in counts.most_common(MAX_KINDS))
    files = f"{format_count(len(paths), 'file')} of kinds that dml doesn't read ({kinds})"
    heif = "" if counts.keys().isdisjoint(HEIF_SUFFIXES) else "pip install 'dml-retrieval[heif]' reads HEIF, or "
    return f"{files}, such as {printable(paths[0])}; {heif}convert images among them to .jpg or .png"


def describe_dangling(link: str) -> str:
    """Return that a link leads to a place where nothing is, and to which."""
    return f"{printable(link)}: a link to {printable(os.path.realpath(link))}, which isn't there"


def _refuse(error: OSError) -> NoReturn:
    raise InputError(f"{printable(error.filename)}: cannot be listed ({error.strerror})") from error
