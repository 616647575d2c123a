"""A look at a data set's image files that is quick enough for the beginning of every run, see `check_readability`."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set, Sized

import numpy as np

from dml.data.image_files.contents import UNREADABLE, list_members, split_member
from dml.data.image_files.decoding import HEIF_SUFFIXES, reads_heif
from dml.data.image_files.images import INSTALL_HEIF, LIMITS, REMEDY, ImageFile, UnreadableImageError, suggest_slashes
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import split_part
from dml.data.table import SPLITS, ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable

SMALL_SIZE = (32, 32)
"""The smallest height and width that JPEG files may be decoded at: they are read to their end, but faster."""
FEW_PATHS = 16
"""The number of paths in a folder up to which each path is looked for; of more paths, the folder is listed."""

logger = logging.getLogger(__name__)


def check_readability(
    table: ImageTable,
    images_per_split: int,
    *,
    on_corrupt: str = "raise",
    prepare_arguments: str = "",
    limits: ImageLimits = LIMITS,
    seed: int = 0,
    warn: Callable[[str], None] = logger.warning,
) -> None:
    """Make sure that all image files of a table exist, and that some of each split can be decoded.

    Args:
        images_per_split: number of images of each split that are drawn at random and decoded, ``data.check_images``;
            with 0, the function does nothing.
        on_corrupt: "raise" makes a fault an error; "skip" warns, unless all files are missing.
        prepare_arguments: arguments with which ``dml prepare`` reads the data set; an empty string doesn't name it.
    """
    if not images_per_split:
        return
    table = table.subset(*SPLITS)
    paths = [*dict.fromkeys(split_part(path)[0] for path in table.paths.tolist())]
    missing = set(find_missing(paths))
    drawn = _draw_paths(table, images_per_split, seed)
    faults = [*_describe_missing(missing, paths), *_describe_unreadable(missing, paths, drawn, limits)]
    if not faults:
        return
    line = "; ".join(faults)
    lists_all = f"; dml prepare {prepare_arguments} lists all" if prepare_arguments else ""
    if len(missing) == len(paths):
        raise InputError(f"{line}{lists_all}")
    if on_corrupt == "skip":
        warn(f"{line}; data.on_corrupt=skip leaves them out{lists_all}")
        return
    raise InputError(f"{line} (data.on_corrupt=skip leaves them out{lists_all})")


def _describe_missing(missing: Set[str], paths: Sequence[str]) -> Iterator[str]:
    """Yield a line on how many of the paths lead to no file, with the first of them; none if all do."""
    if missing:
        first = next(path for path in paths if path in missing)
        verb = "is" if len(missing) == 1 else "are"
        counted = f"{_count(missing, paths, 'image file')} {verb} missing"
        yield f"{counted}{_name_first(missing, printable(first))}{suggest_slashes(first)}"


def _describe_unreadable(
    missing: Set[str], paths: Sequence[str], drawn: Sequence[str], limits: ImageLimits
) -> Iterator[str]:
    """Decode the drawn images, and the first HEIF image if nothing reads these; yield lines about the unreadable."""
    heif = [] if reads_heif() else [path for path in paths if path.lower().endswith(HEIF_SUFFIXES)]
    tried = [path for path in dict.fromkeys([*drawn, *heif[:1]]) if split_part(path)[0] not in missing]
    unreadable = {path: fault for path in tried if (fault := _describe_fault(path, limits))}
    if unreadable:
        first = next(iter(unreadable.values()))
        verb = "was" if len(tried) == 1 else "were"
        yield f"{_count(unreadable, tried, 'image')} that {verb} tried can't be read{_name_first(unreadable, first)}"
    if not unreadable.keys().isdisjoint(heif):
        yield f"{len(heif):,} of {len(paths):,} files are named as HEIF images, which {INSTALL_HEIF} reads"


def find_missing(paths: Iterable[str]) -> list[str]:
    """Return the paths of files, without parts, at which `read_content` finds no file, and no member of an archive.

    Folders with many of the paths are listed, which is faster than looking for each file, above all over a network.
    """
    names_by_folder: dict[str, list[str]] = {}
    for path, _ in map(split_part, paths):
        folder, slash, name = path.rpartition("/")
        names_by_folder.setdefault(folder + slash, []).append(name)
    missing = []
    for folder, names in names_by_folder.items():
        archive, parent = split_member(f"{folder}.")  # the dot stands for a name, the archive's folder may be its root
        if parent and not os.path.isdir(folder):
            missing += _find_missing_members(archive, [f"{parent[:-1]}{name}" for name in names])
        else:
            present = _list_files(folder or ".") if len(names) > FEW_PATHS else set()
            candidates = [f"{folder}{name}" for name in names if name not in present]
            missing += [path for path in candidates if not os.path.exists(path)]
    return missing


def _find_missing_members(archive: str, members: Sequence[str]) -> list[str]:
    """Return the paths of the members that an archive lacks; reading an archive that is damaged tells of its damage."""
    try:
        present = list_members(archive)
    except FileNotFoundError:
        present = set()
    except UNREADABLE:
        return []
    return [f"{archive}/{member}" for member in members if member not in present]


def _list_files(folder: str) -> set[str]:
    """Return the names of the files in a folder, without links; empty if it can't be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except OSError:
        return set()


def _draw_paths(table: ImageTable, images_per_split: int, seed: int) -> list[str]:
    drawn = []
    for number, split in enumerate(SPLITS):
        rows = table.rows(split)
        rng = np.random.default_rng((seed, number))
        chosen = rng.choice(len(rows), min(images_per_split, len(rows)), replace=False)
        drawn += table.paths[rows[np.sort(chosen)]].tolist()
    return [*dict.fromkeys(drawn)]


def _describe_fault(path: str, limits: ImageLimits) -> str:
    """Decode an image -> the path and the reason why it can't be read; an empty string if it can."""
    try:
        ImageFile(path, limits).pixels(at_least=SMALL_SIZE)
    except UnreadableImageError as error:
        return str(error).removesuffix(REMEDY).removeprefix("image ")
    return ""


def _count(faulty: Sized, checked: Sized, noun: str) -> str:
    """Return how many are faulty of how many, such as "2 of 48 images"."""
    return f"{len(faulty):,} of {format_count(len(checked), noun)}"


def _name_first(faulty: Sized, first: str) -> str:
    return f": {first}" if len(faulty) == 1 else f", the first: {first}"
