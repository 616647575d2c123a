"""The image files in a folder and in all folders below it."""

import logging
import os
from pathlib import Path

from dml.data.readers.folder import UNREAD_SUFFIXES, describe_unread, read_suffixes
from dml.ops.errors import InputError
from dml.ops.escaping import printable

MODEL_FILES = {"model.json", "model.safetensors"}
"""Files that the folder of a saved model has; the picture beside them is none of the user's."""

logger = logging.getLogger(__name__)


def list_images(folder: Path) -> list[str]:
    """List the image files in a folder and in the folders below it, sorted by path.

    Hidden files and folders, and the folders of saved models, are passed over; a warning counts the images of kinds
    that aren't read. Links to folders are followed; a folder that several paths lead to is read once.

    Args:
        folder: path of the folder.

    Raises:
        InputError: if the folder has no image that can be read, or can't be listed.
    """
    paths_read: list[str] = []
    unread: list[str] = []
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
        paths = [os.path.join(parent, name) for name in files if not name.startswith(".")]
        paths_read += [path for path in paths if path.lower().endswith(read_suffixes())]
        unread += [
            path
            for path in paths
            if path.lower().endswith(UNREAD_SUFFIXES) and not path.lower().endswith(read_suffixes())
        ]
    if not paths_read:
        kinds = f"; it holds {describe_unread(unread)}" if unread else f" (by suffix: {' '.join(read_suffixes())})"
        raise InputError(f"{printable(folder)}: no image in it that can be read{kinds}")
    if unread:
        logger.warning("left out: %s: %s", printable(folder), describe_unread(sorted(unread)))
    return sorted(paths_read)


def _refuse(error: OSError) -> None:
    raise InputError(f"{printable(error.filename)}: cannot be listed ({error.strerror})") from error
