"""The reader of a user's images in a folder for each class."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dml.data import image_listing
from dml.data.cells import number_classes, warn_of_names
from dml.data.layout import Layout
from dml.data.split_names import divide_by_folders, match_splits
from dml.data.splits import complete_splits
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.text import printable

LAYOUT = Layout(
    name="your own images",
    tree="class/*.jpg or super_class/class/*.jpg, or train/ and test/ with such folders each",
    page="docs/own_data.md",
)
logger = logging.getLogger(__name__)

LEVELS = ("class", "super_class")

Parts = tuple[str, ...]
"""The parts of an image's path below the root, or without the folder of its split: (super-class, class, file)."""


def read(
    root: str | Path | None, *, test_fraction: float | None = 0.5, val_fraction: float = 0.0, seed: int = 0
) -> ImageTable:
    """Read images from a folder that holds a folder for each class: ``class/*.jpg`` or ``super_class/class/*.jpg``.

    Folders named ``train`` and ``test`` (or ``query`` and ``gallery``), with or without ``val``, are splits, with the
    folders of the classes in them or around them; `match_splits` says which other names are. Without splits, whole
    classes are drawn for testing. Labels follow the sorted names of the classes. Files of the system, and files that
    end like text, data or videos, are passed over; a warning counts all other files that aren't read, such as .heic or
    .svg. A link that leads nowhere counts as one to a folder, unless its name ends like an image's.
    """
    if root is not None and os.path.isfile(expand_home(root)):
        raise InputError(f"dataset.root={root}: a file, not a folder; {name_reader(expand_home(root))}")
    folder = LAYOUT.root(root)
    images, repeated = _list_images(folder)
    in_folders = [parts for parts in images if len(parts) > 1]  # beside splits there may be an image
    depth, splits = divide_by_folders([*(parts[:-1] for parts in in_folders), *repeated], f"dataset.root={folder}")
    if splits:
        images, splits = in_folders, splits[: len(in_folders)]
    lists = [name for name in os.listdir(folder) if name.endswith((".csv", ".json", ".txt"))]
    if not splits and (lists := [*match_splits(lists, may_be_classes=True)]):
        logger.warning("%s: not read: %s; dataset=csv reads lists", *map(printable, (folder, ", ".join(lists))))
    classes = [(*parts[:depth], *parts[depth + 1 :]) for parts in images] if splits else images
    _check_depth(folder, images, classes)
    level_classes = _iterate_level_classes(classes)
    labels, names = zip(*(number_classes(classes) for classes in level_classes), strict=True)
    if len(names) > 1 and len(names[1]) == 1:
        logger.warning(
            "dataset.root=%s: all classes are in one super-class, %s; without it: dataset.root=%s",
            *map(printable, (folder, names[1][0], folder / names[1][0])),
        )
    table = ImageTable(
        paths=np.array([os.path.join(folder, *parts) for parts in images]),
        labels=np.stack(labels, axis=1),
        split=np.array(splits or [""] * len(images)),
        levels=LEVELS[: len(labels)],
        names=names,
        source=str(folder),
    )
    warn_of_names(table.labels, table.names, table.source)
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def name_reader(path: Path) -> str:
    """Return what reads a folder, or a file by the end of its name, that was given to another reader."""
    if os.path.isdir(path):
        return "dataset=folder reads a folder of images"
    if path.suffix.lower() in (".csv", ".tsv", ".txt", ".parquet"):
        return "dataset=csv reads a list of images"
    is_zip = path.suffix.lower() == ".zip"
    other = "unpack it, or dataset=csv reads a list of paths such as photos.zip/robin/1.jpg; " if is_zip else ""
    return f"{other}give the folder of {LAYOUT}"


def _list_images(folder: Path) -> tuple[list[Parts], list[Parts]]:
    """List the parts of each image's path, and of links to folders that are read under another path; sorted."""
    images, unread, repeated = list[Parts](), list[str](), list[str]()
    for parent, folders, files in image_listing.walk_folders(folder, repeated):
        sorted_images, unread_here, dangling = image_listing.sort_files(os.path.join(parent, name) for name in files)
        parts = Path(parent).relative_to(folder).parts
        images += ((*parts, os.path.basename(path)) for path in sorted_images)
        unread += unread_here
        fault = ""
        if dangling:
            described = image_listing.describe_dangling(dangling[0])
            fault = f"{described}; mount the disk that it is on, or remove the link"
        elif not sorted_images and not folders and unread_here:
            fault = f"{printable(parent)}: no image that can be read, but {image_listing.describe_unread(unread_here)}"
        elif not sorted_images and not folders:
            suffixes = " ".join(image_listing.SUFFIXES)
            advice = f"remove the folder, or give the folder of {LAYOUT}"
            fault = f"{printable(parent)}: no image in it (by suffix: {suffixes}); {advice}"
        if fault:
            raise InputError(fault)
    if unread:
        logger.warning("left out: %s: %s", printable(folder), image_listing.describe_unread(unread))
    return sorted(images), sorted(Path(link).relative_to(folder).parts for link in repeated)


def _check_depth(folder: Path, images: list[Parts], classes: list[Parts]) -> None:
    """Make sure that all images have the same depth without the folder of the split, as ``classes`` has them."""
    examples = {len(parts): os.path.join(*image) for image, parts in zip(images[::-1], classes[::-1], strict=True)}
    deepest, fault = max(examples), ""
    if 1 in examples:
        fault = f"{os.path.join(folder, examples[1])}: an image outside of a class's folder"
    elif deepest > len(LEVELS) + 1:
        fault = f"{(folder / examples[deepest]).parent}: a folder too deep"
    elif len(examples) > 1:
        fault = f"dataset.root={folder}: {examples[2]} is in a class, {examples[3]} in a class of a super-class"
    if fault:
        raise InputError(f"{fault}; give the folder of {LAYOUT}")


def _iterate_level_classes(images: list[Parts]) -> Iterator[list[str]]:
    """Yield the class name of each image, with that of its super-class, for one level after the other."""
    depth = len(images[0]) - 1
    for folders in range(depth, 0, -1):
        yield ["/".join(parts[:folders]) for parts in images]
