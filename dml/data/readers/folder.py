import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dml.data.layout import Layout
from dml.data.splits import complete_splits, numbered
from dml.data.table import SPLITS, ImageTable
from dml.ops.errors import InputError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LAYOUT = Layout(
    name="a folder of images of your own",
    tree="class/*.jpg or super_class/class/*.jpg, or train/ and test/ with such folders each",
    page="docs/own_data.md",
)
LEVELS = ("class", "super_class")

Parts = tuple[str, ...]
"""Of an image's path below its split: (class, file) or (super-class, class, file)."""


def read(
    root: str | Path | None, *, test_fraction: float = 0.5, val_fraction: float = 0.0, seed: int = 0
) -> ImageTable:
    """Images of one's own, in a folder for each class: ``class/*.jpg`` or ``super_class/class/*.jpg``.

    Folders named ``train`` and ``test`` (or ``query`` and ``gallery``), with or without ``val``, are the splits and
    hold the classes; otherwise whole classes are drawn for testing. Labels follow the sorted names. Hidden files
    and what isn't an image by its suffix are passed over.

    Args:
        root: the folder.
        test_fraction: of the classes that are drawn for testing, if there are no splits.
        val_fraction: of the training classes that are drawn for ``val``, if there is none; 0 draws none.
        seed: of the draws.

    Raises:
        InputError: if images are at different depths, a folder has none, or the splits are incomplete.
    """
    folder = LAYOUT.root(root)
    splits = _splits(folder)
    images = [(split, parts) for split in splits for parts in _images(folder / split)]
    _check_depth(folder, images)
    labels, names = zip(*(numbered(classes) for classes in _classes([parts for _, parts in images])), strict=True)
    table = ImageTable(
        paths=np.array([os.path.join(folder, split, *parts) for split, parts in images]),
        labels=np.stack(labels, axis=1),
        split=np.array([split for split, _ in images]),
        levels=LEVELS[: len(labels)],
        names=names,
        source=str(folder),
    )
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def _splits(folder: Path) -> list[str]:
    """The splits that the folder is divided into; an empty string alone if it holds the classes themselves."""
    folders = [entry.name for entry in _entries(folder) if entry.is_dir()]
    named = [name for name in folders if name in SPLITS]
    divided = ("train" in named and len(named) > 1) or len(named) == len(folders)
    if not divided:
        return [""]  # a class may well be called train
    if others := [name for name in folders if name not in SPLITS]:
        raise InputError(
            f"dataset.root={folder}: {others[0]}/ stands beside {' and '.join(f'{name}/' for name in named)}; "
            f"beside a split there may only be splits, {', '.join(SPLITS)}"
        )
    return named or [""]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, by name, without hidden files and macOS's shadows of files."""
    with os.scandir(folder) as entries:
        return sorted(
            (entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))), key=lambda entry: entry.name
        )


def _images(folder: Path, above: Parts = ()) -> Iterator[Parts]:
    found = False
    for entry in _entries(folder):
        parts = (*above, entry.name)
        if entry.is_dir() and len(parts) > len(LEVELS):
            raise InputError(f"{entry.path}: a folder too deep; give {LAYOUT}")
        if entry.is_dir():
            found = True
            yield from _images(folder / entry.name, parts)
        elif entry.name.lower().endswith(SUFFIXES):
            found = True
            yield parts
    if not found:
        raise InputError(
            f"{folder}: no image in it (by suffix: {' '.join(SUFFIXES)}); remove the folder, or give {LAYOUT}"
        )


def _check_depth(folder: Path, images: list[tuple[str, Parts]]) -> None:
    """Images of classes at one depth, in their super-classes all or none."""
    examples = {len(parts): os.path.join(split, *parts) for split, parts in reversed(images)}
    if 1 in examples:
        raise InputError(f"{os.path.join(folder, examples[1])}: an image outside of a class's folder; give {LAYOUT}")
    if len(examples) > 1:
        raise InputError(
            f"dataset.root={folder}: {examples[2]} is in a class, {examples[3]} in a class of a super-class; "
            "either all classes are in super-classes or none"
        )


def _classes(images: list[Parts]) -> Iterator[list[str]]:
    """For each level the classes of the images; one goes by its super-class's name too, for there may be namesakes."""
    depth = len(images[0]) - 1
    for folders in range(depth, 0, -1):
        yield ["/".join(parts[:folders]) for parts in images]
