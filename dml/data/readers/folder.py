"""The reader of a user's images in a folder for each class."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dml.data.image_files.decoding import HEIF_SUFFIXES, reads_heif
from dml.data.layout import Layout
from dml.data.splits import SPLIT_NAMES, complete_splits, find_split_prefix, number_classes
from dml.data.table import SPLITS, ImageTable
from dml.ops.errors import InputError
from dml.ops.escaping import printable
from dml.ops.filesystem.paths import expand_home
from dml.ops.text.counts import format_count

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
NO_IMAGE_NAMES = ("license", "makefile", "readme")
"""Names of files without an ending that are no images, in lower case."""
LAYOUT = Layout(
    name="your own images",
    tree="class/*.jpg or super_class/class/*.jpg, or train/ and test/ with such folders each",
    page="docs/own_data.md",
)
MAX_KINDS = 8
"""Number of endings that a warning about files names at most."""
logger = logging.getLogger(__name__)

LEVELS = ("class", "super_class")

Parts = tuple[str, ...]
"""The parts of an image's path below the folder of its split: (class, file) or (super-class, class, file)."""


def read(
    root: str | Path | None, *, test_fraction: float = 0.5, val_fraction: float = 0.0, seed: int = 0
) -> ImageTable:
    """Read images from a folder that holds a folder for each class: ``class/*.jpg`` or ``super_class/class/*.jpg``.

    Folders named ``train`` and ``test`` (or ``query`` and ``gallery``), with or without ``val``, are splits, which
    then hold the folders of the classes. Without splits, whole classes are drawn for testing. Labels follow the sorted
    names of the classes. Hidden files, and files that end like text, data or videos, are passed over; a warning counts
    all other files that aren't read, such as .heic or .svg. A link that leads nowhere counts as one to a folder, unless
    its name ends like an image's.

    Args:
        root: path of the folder.
        test_fraction: fraction of the classes that is drawn for testing, if the folder has no splits; 0 draws
            none.
        val_fraction: fraction of the training classes that is drawn for ``val``, if the folder has no ``val``; 0 draws
            none.
        seed: seed of the draws.

    Raises:
        InputError: if images are at different depths, a folder has no images, a link to a folder leads nowhere, or the
            splits are incomplete.
    """
    if root is not None and os.path.isfile(expand_home(root)):
        raise InputError(f"dataset.root={root}: a file, not a folder; {name_reader(expand_home(root))}")
    folder = LAYOUT.root(root)
    splits, unread = _find_splits(folder), list[str]()
    images = [(split, parts) for split in splits for parts in _find_images(folder / split, unread)]
    if unread:
        logger.warning("left out: %s: %s", printable(folder), describe_unread(unread))
    _check_depth(folder, images)
    level_classes = _iterate_level_classes([parts for _, parts in images])
    labels, names = zip(*(number_classes(classes) for classes in level_classes), strict=True)
    if len(names) > 1 and len(names[1]) == 1:
        logger.warning(
            "dataset.root=%s: all classes are in one super-class, %s; without it: dataset.root=%s",
            *map(printable, (folder, names[1][0], folder / names[1][0])),
        )
    table = ImageTable(
        paths=np.array([os.path.join(folder, split, *parts) for split, parts in images]),
        labels=np.stack(labels, axis=1),
        split=np.array([split for split, _ in images]),
        levels=LEVELS[: len(labels)],
        names=names,
        source=str(folder),
    )
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def name_reader(path: Path) -> str:
    """Return what reads a folder, or a file by the end of its name, that was given to another reader."""
    if os.path.isdir(path):
        return "dataset=folder reads a folder of images"
    match path.suffix.lower():
        case ".csv" | ".tsv" | ".txt":
            return "dataset=csv reads a list of images"
        case ".tar":
            return "unpack it, or dataset=shards reads tar files with a file beside each image that names its class"
        case ".zip":
            return "unpack it, or dataset=csv reads a list of paths such as photos.zip/robin/1.jpg"
        case ".gz" | ".tgz" | ".bz2" | ".xz" | ".zst" | ".7z" | ".rar":
            return f"unpack it, and give the folder of {LAYOUT}"
        case ".parquet":
            return "dataset=csv reads a list of images, as .csv"
    return f"give the folder of {LAYOUT}"


def _find_splits(folder: Path) -> list[str]:
    """Return the splits that the folder holds; a list of an empty string if it holds the classes themselves."""
    folder_names = [entry.name for entry in _list_entries(folder) if _is_folder(entry)]
    splits = [name for name in folder_names if name in SPLITS]
    _check_split_names(folder, folder_names)
    has_splits = ("train" in splits and len(splits) > 1) or len(splits) == len(folder_names)
    if not has_splits:
        return [""]  # a single folder called train beside others may be a class
    if class_names := [name for name in folder_names if name not in SPLITS]:
        raise InputError(
            f"dataset.root={folder}: {class_names[0]}/ stands beside {' and '.join(f'{name}/' for name in splits)}; "
            f"beside a split there may only be splits, {', '.join(SPLITS)}"
        )
    return splits or [""]


def _check_split_names(folder: Path, folder_names: list[str]) -> None:
    """Refuse folders that are named like splits, but not as this reader names them, such as ``Train`` and ``valid``.

    Names that only begin with a split's word, such as ``test_images``, may be those of classes. They are refused where
    the classes are in folders below them, since the same classes would then be in training and in test.
    """
    meant = {name: SPLIT_NAMES[name.lower()] for name in folder_names if name.lower() in SPLIT_NAMES}
    if not _is_divided(folder_names, meant):
        meant = {name: split for name in folder_names if (split := find_split_prefix(name))}
        if not any(_is_folder(entry) for name in meant for entry in _list_entries(folder / name)):
            return
    renamed = {name: split for name, split in meant.items() if name != split}
    if _is_divided(folder_names, meant) and renamed:
        remedy = ", ".join(f"{printable(name)}/ to {split}/" for name, split in renamed.items())
        raise InputError(
            f"dataset.root={printable(folder)}: the folders {' and '.join(f'{printable(name)}/' for name in meant)} "
            f"are named like splits; rename {remedy} (the splits are {', '.join(SPLITS)})"
        )


def _is_divided(folder_names: list[str], splits: dict[str, str]) -> bool:
    """Tell whether the folders that are named like splits, with the split of each, divide the images."""
    return len({*splits.values()}) > 1 and ("train" in splits.values() or len(splits) == len(folder_names))


def _list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a folder in the order of the names, without hidden files and the copies that macOS puts into archives."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]
    except OSError as error:
        raise InputError(f"{printable(folder)}: cannot be listed ({error.strerror})") from error
    for entry in visible:
        if entry.is_symlink() and not _is_image(entry.name) and not os.path.exists(entry.path):
            # without the error, the data set would lack a class, or a split, while a disk isn't mounted
            raise InputError(f"{describe_dangling(entry.path)}; mount the disk that it is on, or remove the link")
    return sorted(visible, key=lambda entry: entry.name)


def _is_image(name: str) -> bool:
    """Tell whether a file's name ends like that of an image, of any kind."""
    return name.lower().endswith((*SUFFIXES, *UNREAD_SUFFIXES))


def describe_dangling(link: str) -> str:
    """Return that a link leads to a place where nothing is, and to which."""
    return f"{printable(link)}: a link to {printable(os.path.realpath(link))}, which isn't there"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder or a link to one.

    A link to itself isn't a folder; reading it as an image raises an error that names it.
    """
    try:
        return entry.is_dir()
    except OSError:
        return False


def _find_images(folder: Path, unread: list[str], parent: Parts = ()) -> Iterator[Parts]:
    """Yield the parts of each image's path.

    Args:
        folder: folder of a split, of a super-class or of a class.
        unread: list to which the paths of files are added that aren't read, but may be images.
        parent: the parts of the folder's path below that of the split.
    """
    is_empty, unread_before = True, len(unread)
    suffixes = read_suffixes()
    for entry in _list_entries(folder):
        parts = (*parent, entry.name)
        is_folder = _is_folder(entry)
        if is_folder and len(parts) > len(LEVELS):
            raise InputError(f"{entry.path}: a folder too deep; give the folder of {LAYOUT}")
        if is_folder:
            is_empty = False
            yield from _find_images(folder / entry.name, unread, parts)
        elif entry.name.lower().endswith(suffixes):
            is_empty = False
            yield parts
        elif may_be_image(entry.name):
            unread.append(entry.path)
    if is_empty and len(unread) > unread_before:
        raise InputError(
            f"{printable(folder)}: no image that can be read, but {describe_unread(unread[unread_before:])}"
        )
    if is_empty:
        raise InputError(
            f"{folder}: no image in it (by suffix: {' '.join(SUFFIXES)}); remove the folder, or give the folder of "
            f"{LAYOUT}"
        )


def read_suffixes() -> tuple[str, ...]:
    """Return the endings of the image files that are read."""
    return SUFFIXES + HEIF_SUFFIXES if reads_heif() else SUFFIXES


def may_be_image(name: str) -> bool:
    """Tell whether a file may be an image by its name: unless it ends like text, data or a video."""
    return not name.lower().endswith(NO_IMAGE_SUFFIXES) and name.lower() not in NO_IMAGE_NAMES


def describe_unread(paths: list[str]) -> str:
    """Return how many files of which kinds aren't read, the first of them, and what to do."""
    counts = Counter(os.path.splitext(path)[1].lower() or "without an ending" for path in paths)
    kinds = [f"{count:,} {printable(suffix)}" for suffix, count in counts.most_common(MAX_KINDS)]
    if rest := len(counts) - len(kinds):
        kinds.append(format_count(rest, "other ending"))
    are_images = counts.keys() <= {*UNREAD_SUFFIXES}
    noun = "image" if are_images else "file"
    files = f"1 {noun} of a kind" if len(paths) == 1 else f"{len(paths):,} {noun}s of kinds"
    remedy = f"convert {'them' if are_images else 'the images among them'} to .jpg or .png"
    if not counts.keys().isdisjoint(HEIF_SUFFIXES):
        remedy = f"pip install 'dml[heif]' reads .heic, .heif and .hif, or {remedy}"
    return f"{files} that dml doesn't read ({', '.join(kinds)}), such as {printable(paths[0])}; {remedy}"


def _check_depth(folder: Path, images: list[tuple[str, Parts]]) -> None:
    """Make sure that all images have the same depth: either all classes are in super-classes, or none."""
    examples = {len(parts): os.path.join(split, *parts) for split, parts in reversed(images)}
    if 1 in examples:
        raise InputError(
            f"{os.path.join(folder, examples[1])}: an image outside of a class's folder; give the folder of {LAYOUT}"
        )
    if len(examples) > 1:
        raise InputError(
            f"dataset.root={folder}: {examples[2]} is in a class, {examples[3]} in a class of a super-class; "
            "either all classes are in super-classes or none"
        )


def _iterate_level_classes(images: list[Parts]) -> Iterator[list[str]]:
    """Yield the class name of each image, for one level after the other.

    The name of a class includes that of its super-class, because classes of two super-classes may have the same name.
    """
    depth = len(images[0]) - 1
    for folders in range(depth, 0, -1):
        yield ["/".join(parts[:folders]) for parts in images]
