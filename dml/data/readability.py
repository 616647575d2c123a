"""A look at a data set's image files that is quick enough for the beginning of every run, see `check_readability`."""

import logging
import os
from collections.abc import Callable, Iterable

import numpy as np

from dml.data.image_files.contents import UNREADABLE, list_members, split_member
from dml.data.image_files.decoding import HEIF_SUFFIXES, reads_heif
from dml.data.image_files.images import INSTALL_HEIF, LIMITS, REMEDY, ImageFile, UnreadableImageError, suggest_slashes
from dml.data.image_files.limits import ImageLimits
from dml.data.image_files.parts import split_part
from dml.data.split_names import SPLITS
from dml.data.table import ImageTable
from dml.runtime.errors import InputError
from dml.runtime.text import format_count, printable

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
    faults, missing = list[str](), {*find_missing(paths)}
    if missing:
        first = next(path for path in paths if path in missing)
        verb = "is" if len(missing) == 1 else "are"
        faults.append(
            f"{len(missing):,} of {format_count(len(paths), 'image file')} {verb} missing"
            f"{', the first' if len(missing) > 1 else ''}: {printable(first)}{suggest_slashes(first)}"
        )
    heif = [] if reads_heif() else [path for path in paths if path.lower().endswith(HEIF_SUFFIXES)]
    drawn = [*_draw_paths(table, images_per_split, seed), *heif[:1]]
    tried = [path for path in dict.fromkeys(drawn) if split_part(path)[0] not in missing]
    if unreadable := {path: fault for path in tried if (fault := _describe_fault(path, limits))}:
        faults.append(
            f"{len(unreadable):,} of {format_count(len(tried), 'image')} that {'was' if len(tried) == 1 else 'were'} "
            f"tried can't be read{', the first' if len(unreadable) > 1 else ''}: {next(iter(unreadable.values()))}"
        )
    if not unreadable.keys().isdisjoint(heif):
        faults.append(f"{len(heif):,} of {len(paths):,} files are named as HEIF images, which {INSTALL_HEIF} reads")
    if not faults:
        return
    line = "; ".join(faults)
    lists_all = f"; dml prepare {prepare_arguments} lists all" if prepare_arguments else ""
    if len(missing) == len(paths):
        raise InputError(f"{line}{lists_all}")
    if on_corrupt == "raise":
        raise InputError(f"{line} (data.on_corrupt=skip leaves them out{lists_all})")
    warn(f"{line}; data.on_corrupt=skip leaves them out{lists_all}")


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


def _find_missing_members(archive: str, members: list[str]) -> list[str]:
    try:
        present = list_members(archive)
    except FileNotFoundError:
        present = set()
    except UNREADABLE:  # reading its images tells of its damage
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
    drawn: list[str] = []
    for number, split in enumerate(SPLITS):
        rows, rng = table.rows(split), np.random.default_rng((seed, number))
        chosen = rng.choice(len(rows), min(images_per_split, len(rows)), replace=False)
        drawn += table.paths[rows[np.sort(chosen)]].tolist()
    return drawn


def _describe_fault(path: str, limits: ImageLimits) -> str:
    """Decode an image -> the path and the reason why it can't be read; an empty string if it can."""
    try:
        ImageFile(path, limits).pixels(at_least=(32, 32))  # JPEG files are read to their end, but faster
    except UnreadableImageError as error:
        return str(error).removesuffix(REMEDY).removeprefix("image ")
    return ""
