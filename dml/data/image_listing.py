"""The image files in a folder and in all folders below it, or in a list."""

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dml.data.layout import name_similar, read_list_lines
from dml.data.readers import csv
from dml.data.readers.folder import UNREAD_SUFFIXES, describe_dangling, describe_unread, may_be_image, read_suffixes
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.paths import expand_home

LISTS = (".csv", ".tsv", ".txt", ".parquet")
"""The endings of the files that list images."""
MODEL_FILES = {"model.json", "model.safetensors"}
"""Files that the folder of a saved model has; the picture beside them is none of the user's."""

logger = logging.getLogger(__name__)


def list_images(folder: Path) -> list[str]:
    """List the image files in a folder and in the folders below it, sorted by path.

    Hidden files and folders, and the folders of saved models, are passed over; a warning counts the files that
    aren't read but may be images, and another one the links that lead nowhere, such as to a disk that isn't mounted.
    Links to folders are followed; a folder that several paths lead to is read once.

    Args:
        folder: path of the folder.

    Raises:
        InputError: if the folder has no image that can be read, or can't be listed.
    """
    suffixes = read_suffixes()
    files = sorted(_iterate_files(folder))
    paths_read = [path for path in files if path.lower().endswith(suffixes)]
    others = [path for path in files if not path.lower().endswith(suffixes)]
    # os.walk counts a link that leads nowhere as a file, even if a folder is meant
    no_images = [path for path in others if not path.lower().endswith(UNREAD_SUFFIXES)]
    dangling = [path for path in no_images if os.path.islink(path) and not os.path.exists(path)]
    unread = sorted({path for path in others if may_be_image(os.path.basename(path))} - {*dangling})
    left_out = [describe_unread(unread)] if unread else []
    left_out += [_describe_links(dangling)] if dangling else []
    if not paths_read:
        reason = f"; it holds {'; '.join(left_out)}" if left_out else f" (by suffix: {' '.join(suffixes)})"
        raise InputError(f"{printable(folder)}: no image in it that can be read{reason}")
    for line in left_out:
        logger.warning("left out: %s: %s", printable(folder), line)
    return paths_read


def list_named_images(path: str | Path) -> tuple[list[str], list[str]] | None:
    """List the images that a folder or a list names -> their paths, and the names of their classes.

    The class of an image in a folder is the folder that holds it, relative to the whole folder. A list has a column
    ``path`` and perhaps ``label``, as ``dataset=csv`` reads it, or is a .txt file with a path in each line; without
    classes, their names are empty.

    Args:
        path: path of the folder, or of a list that ends with one of `LISTS`; for any other path the result is None.

    Raises:
        InputError: if there is no such list, or it can't be read.
    """
    if path == Path():
        raise InputError("images: Path('') stands for the whole working folder; give '.' if you mean that")
    place = expand_home(path)
    if os.path.isdir(place):
        paths = list_images(place)
        parents = (os.path.relpath(os.path.dirname(image), place) for image in paths)
        return paths, ["" if parent == "." else parent for parent in parents]
    if place.suffix.lower() not in LISTS:
        return None
    if not os.path.exists(place):
        raise InputError(
            f"{printable(place)}: no such file{name_similar(place)}; give a .csv file or a folder of images"
        )
    if place.suffix.lower() == ".txt" and "path" not in re.split(r"[,;\t]", (lines := read_list_lines(place))[0]):
        paths = [str(place.parent / expand_home(line.strip())) for line in lines if line.strip()]
        return paths, [""] * len(paths)
    table = csv.read_listed(place, needs_labels=False)
    return table.paths.tolist(), [table.name_class(label) for label in table.labels[:, 0].tolist()]


def _iterate_files(folder: Path) -> Iterator[str]:
    """Yield the paths of all files in a folder and in the folders below it that aren't hidden."""
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        if (real_path := os.path.realpath(parent)) in visited:  # a link may lead back to a folder above it
            folders.clear()
            continue
        visited.add(real_path)
        if set(files) >= MODEL_FILES:
            folders.clear()
            continue
        visible = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        folders[:] = sorted(visible, key=lambda name: (os.path.islink(os.path.join(parent, name)), name))
        yield from (os.path.join(parent, name) for name in files if not name.startswith("."))


def _describe_links(dangling: list[str]) -> str:
    """Return how many links lead nowhere, and the first of them."""
    links = "1 link that leads" if len(dangling) == 1 else f"{len(dangling):,} links that lead"
    return f"{links} nowhere, such as {describe_dangling(dangling[0])}"


def _refuse(error: OSError) -> None:
    raise InputError(f"{printable(error.filename)}: cannot be listed ({error.strerror})") from error
