"""A look at a data set: files that are missing, unreadable or copies of others, and what its splits hold."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import combinations

import numpy as np
from rich.table import Table
from rich.text import Text

from dml.data.contents import (
    ARCHIVE,
    MISSING,
    UNREADABLE,
    hash_content,
    list_members,
    read_sizes,
    read_stamps,
    split_member,
    split_part,
)
from dml.data.images import (
    HEIF_SUFFIXES,
    LIMITS,
    REMEDY,
    ImageFile,
    ImageLimits,
    UnreadableImageError,
    reads_heif,
)
from dml.data.prepared.cache import CacheFolder
from dml.data.prepared.verification import NO_FILE, CheckedImage, find_copies, read_verified
from dml.data.split_names import SPLITS
from dml.data.table import EVERY_LEVEL, TEST_SPLITS, TRAINING_SPLITS, UNKNOWN, ImageTable, find_equal
from dml.runtime.errors import InputError
from dml.runtime.files import expand_home
from dml.runtime.text import format_count, printable

FEW_PATHS = 16
"""The number of paths in a folder up to which each path is looked for; of more paths, the folder is listed."""
EXCLUDE_COPIES = "dataset.queries_in_gallery=true excludes each copy from the ranking of its query"
SAMPLED_QUERIES = 64
"""The number of queries that `warn_of_copies` compares with the gallery, so that it takes a moment."""
NAMED_CLASSES = 3
"""How many of the classes that have changed a message names."""

SplitSummary = Mapping[str, Mapping[str, str]]
"""{split: {class: "<number of images> <checksum of their paths>"}}, classes of level 0."""

logger = logging.getLogger(__name__)


def check_readability(
    table: ImageTable,
    images_per_split: int,
    *,
    on_corrupt: str = "raise",
    prepare_arguments: str = "",
    limits: ImageLimits = LIMITS,
) -> None:
    """Make sure that all image files of a table exist, and that some of each split can be decoded: in a moment.

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
    missing = find_missing(paths)
    unread_heif = [] if reads_heif() else [path for path in paths if path.lower().endswith(HEIF_SUFFIXES)]
    drawn = dict.fromkeys([*_draw_paths(table, images_per_split), *unread_heif[:1]])
    tried = [path for path in drawn if split_part(path)[0] not in {*missing}]
    faults = [fault for path in tried if (fault := _describe_fault(path, limits))]
    lines = []
    if missing:
        files = format_count(len(paths), "image file")
        lines.append(f"{len(missing):,} of {files} missing, the first: {printable(missing[0])}")
    if faults:
        tried_images = format_count(len(tried), "image")
        lines.append(f"{len(faults):,} of {tried_images} that were tried can't be read, the first: {faults[0]}")
    if not lines:
        return
    all_are_missing = len(missing) == len(paths)
    if not all_are_missing:
        lines.append("data.on_corrupt=skip leaves them out")
    if prepare_arguments:
        lines.append(f"dml prepare {prepare_arguments} lists all")
    if on_corrupt == "raise" or all_are_missing:
        raise InputError("; ".join(lines))
    logger.warning("; ".join(lines))


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


def _draw_paths(table: ImageTable, images_per_split: int) -> list[str]:
    drawn: list[str] = []
    for number, split in enumerate(SPLITS):
        rows, rng = table.rows(split), np.random.default_rng((0, number))
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


def assign_content_ids(table: ImageTable, folder: CacheFolder | None, limits: ImageLimits = LIMITS) -> ImageTable:
    """Fill in the column ``content`` of a table: images of the same content in query and gallery share a number.

    Only files that have the size of some query image are compared, by the SHA-256 of their content; all others are
    `UNKNOWN`. That of a file whose size and time are unchanged is taken from the verification by ``dml prepare`` in the
    folder, if there is one. Files that are missing or can't be read get no number; decoding them raises the error.
    """
    rows = table.rows("query", "gallery")
    paths = [split_part(path)[0] for path in table.paths[rows].tolist()]
    sizes = np.array(read_sizes(paths), dtype=np.int64)
    query_sizes = np.setdiff1d(sizes[table.split[rows] == "query"], MISSING[0])
    candidates = np.flatnonzero(np.isin(sizes, query_sizes)).tolist()
    files = [paths[i] for i in candidates]
    verified = read_verified(folder) if folder else {}
    known = {(name, *image.stamp): image.sha256 for name, image in verified.items()}
    names = folder.relative_paths(files) if folder else files
    content_ids: dict[str, int] = {}
    content = table.content.copy()
    content[rows] = UNKNOWN
    for row, path, name, stamp in zip(rows[candidates], files, names, read_stamps(files).tolist(), strict=True):
        if digest := known.get((name, *stamp)) or hash_content(path, limits.max_image_bytes):
            content[row] = content_ids.setdefault(digest, len(content_ids))
    return replace(table, content=content)


def count_queries_in_gallery(table: ImageTable) -> tuple[int, int]:
    """Count the query images that are in the gallery of their list too, and all query images, by ``content``."""
    queries, gallery = table.rows("query"), table.rows("gallery")
    pairs = find_equal(table.content[queries], table.content[gallery])
    lists, gallery_lists = table.benchmark[queries[pairs[:, 0]]], table.benchmark[gallery[pairs[:, 1]]]
    is_in_list = (lists == gallery_lists) | (lists == EVERY_LEVEL) | (gallery_lists == EVERY_LEVEL)
    return len(np.unique(pairs[is_in_list, 0])), len(queries)


def warn_of_copies(table: ImageTable, limits: ImageLimits = LIMITS, queries: int = SAMPLED_QUERIES) -> None:
    """Warn if the gallery holds copies of some query images, which are then nearest to their queries."""
    rows = np.flatnonzero((table.split == "query") & (table.content == UNKNOWN))  # others exclude their copies
    sampled = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), queries)).astype(np.int64))]
    compared = table.take(np.concatenate([sampled, table.rows("gallery")]))
    in_gallery, count = count_queries_in_gallery(assign_content_ids(compared, None, limits))
    if in_gallery:
        compared_queries = "queries" if count == len(rows) else f"queries that were compared, of {len(rows):,},"
        logger.warning(
            "%s of %s %s are in their gallery as files of the same content, and find themselves; %s",
            *(f"{in_gallery:,}", f"{count:,}", compared_queries, EXCLUDE_COPIES),
        )


def describe_copies(table: ImageTable, images: Mapping[str, CheckedImage]) -> Iterator[str]:
    """Yield a line for each pair of splits with files of the same content, and one about copies of two classes."""
    for first, second in combinations([split for split in SPLITS if len(table.rows(split))], 2):
        is_compared, advice = table.split == first, ""
        if (first, second) == ("query", "gallery"):
            is_compared &= table.content == UNKNOWN  # others exclude their copies
            advice = f"; {EXCLUDE_COPIES}"
        elif first in TRAINING_SPLITS and second in TEST_SPLITS:
            advice = "; the test then flatters what the training has seen"
        if shared := find_copies(table.take(np.flatnonzero(is_compared)), table.subset(second), images):
            example = " is ".join(map(printable, next(iter(shared.items()))))
            finding = f"{format_count(len(shared), 'file')} in {second} with the content of a file in {first}"
            yield f"{finding}, such as {example}{advice}"
    labels_by_content: dict[str, set[int]] = {}
    for path, label in zip(table.paths.tolist(), table.labels[:, 0].tolist(), strict=True):
        if images[path].sha256 and label != UNKNOWN:
            labels_by_content.setdefault(images[path].sha256, set()).add(label)
    if doubtful := [path for path in images if len(labels_by_content.get(images[path].sha256, ())) > 1]:
        files = format_count(len(doubtful), "file")
        yield f"{files} with the content of a file of another class, such as {printable(doubtful[0])}"


def make_overview_table(table: ImageTable, images: Mapping[str, CheckedImage]) -> Table:
    """Make a table for the terminal of what each split holds, a column for each; five splits fit 80 columns."""
    shown = Table("", title="what the splits hold", title_justify="left", title_style="bold")
    columns = {split: summarize_split(table.subset(split), images) for split in SPLITS if len(table.rows(split))}
    for split in columns:
        shown.add_column(split, justify="right")
    for name in next(iter(columns.values()), ()):
        shown.add_row(name, *(column[name] for column in columns.values()))
    return shown


def summarize_split(part: ImageTable, images: Mapping[str, CheckedImage]) -> dict[str, str]:
    """Return the numbers of one split, as texts by their names; sizes are width x height, 0x0 if none can be read."""
    rows = np.sort(np.unique(part.paths, return_index=True)[1])  # an image may be in several benchmark lists
    files = [images[path] for path in part.paths[rows].tolist()]
    labels = part.labels[rows, 0]
    _, counts = np.unique(labels[labels != UNKNOWN], return_counts=True)
    readable = [image for image in files if not image.error]
    sizes = np.array([(image.width, image.height) for image in readable] or [(0, 0)])
    missing = sum(image.error == NO_FILE for image in files)
    class_sizes = (counts.min(), np.median(counts), counts.max()) if len(counts) else (0, 0, 0)
    numbers = {
        "images": len(files),
        "classes": len(counts),
        **dict(zip(("smallest class", "median class", "largest class"), map(int, class_sizes), strict=True)),
        "median size": np.median(sizes, axis=0).astype(int),
        "smallest size": sizes[sizes.prod(axis=1).argmin()],
        "copies": len(readable) - len({image.sha256 for image in readable}),
        "missing files": missing,
        "unreadable": len(files) - len(readable) - missing,
    }
    return {name: "x".join(f"{number:,}" for number in np.atleast_1d(value)) for name, value in numbers.items()}


def make_count_table(table: ImageTable, published: Mapping[str, Mapping[str, int]]) -> Table:
    """Make a table of the number of images and of classes in each split, beside the published numbers."""
    shown = Table("split", "of", title="images and classes", title_justify="left", title_style="bold")
    for name in ("found", "published"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    counts = table.counts()
    for split in SPLITS:
        split_counts, split_published = counts.get(split, {}), published.get(split, {})
        for i, kind in enumerate({**split_counts, **split_published}):
            count, expected = split_counts.get(kind, 0), split_published.get(kind)
            verdict = "" if expected is None else "[green]same" if count == expected else "[red]differs"
            numbers = f"{count:,}", "" if expected is None else f"{expected:,}"
            shown.add_row(split if i == 0 else "", Text(printable(kind)), *numbers, verdict)
        shown.add_section()
    return shown


def summarize_data(table: ImageTable, root: str | None) -> dict[str, dict[str, str]]:
    """Return the classes and the checksums of a data set's images by split; a data set that was moved has the same."""
    return checksum_splits(table, find_base_folder(root, table))


def find_base_folder(root: str | None, table: ImageTable) -> str | None:
    """Return the folder, or the archive, that the paths of a table are below; None if it can't be known."""
    base = str(expand_home(root)) if root else table.source
    if os.path.isfile(base) and not base.endswith(ARCHIVE):  # a list of images, such as a .csv file
        return os.path.dirname(base) or "."
    return base if os.path.exists(base) else None


def checksum_splits(table: ImageTable, folder: str | None = None) -> dict[str, dict[str, str]]:
    """Return for each split in use its classes, the number of their images and a checksum of the images' paths.

    A benchmark that lists an image at several levels counts it once for each. Paths are taken relative to the folder,
    so that a data set may be moved as a whole.
    """
    paths = make_relative(table.paths.tolist(), folder)
    summary: dict[str, dict[str, str]] = {}
    for split in SPLITS:
        rows = table.rows(split)
        rows = rows[np.argsort(table.labels[rows, 0], kind="stable")]
        labels, starts = np.unique(table.labels[rows, 0], return_index=True)
        for label, class_rows in zip(labels.tolist(), np.split(rows, starts[1:]), strict=False):
            name = table.names[0][label] if table.names and label >= 0 else str(label)
            lines = sorted(f"{paths[row]}\0{table.labels[row].tolist()[1:]}" for row in class_rows.tolist())
            checksum = sha256("\n".join(lines).encode()).hexdigest()[:16]
            summary.setdefault(split, {})[name] = f"{len(lines)} {checksum}"
    return summary


def make_relative(paths: list[str], folder: str | None) -> list[str]:
    """Return paths relative to a folder; with None, return them as they are."""
    if not folder:
        return paths
    prefix = os.path.join(folder, "")
    return [
        # relpath takes 10 µs
        path.removeprefix(prefix) if path.startswith(prefix) and "/../" not in path else os.path.relpath(path, folder)
        for path in paths
    ]


def describe_changes(before: SplitSummary, after: SplitSummary) -> list[str]:
    """Return what differs between two summaries, a phrase for each kind of change."""
    old, new = _group_by_class(before), _group_by_class(after)
    changed: dict[str, list[str]] = {}
    for name in {**old, **new}:
        if name not in new:
            changed.setdefault("gone", []).append(name)
        elif name not in old:
            changed.setdefault("new", []).append(name)
        elif old[name].keys() != new[name].keys():
            changed.setdefault(f"moved from {' and '.join(old[name])} to {' and '.join(new[name])}", []).append(name)
        elif old[name] != new[name]:
            changed.setdefault("with other images", []).append(name)
    return [
        f"{format_count(len(names), 'class', 'classes')} {kind} ({_list_some(names)})"
        for kind, names in changed.items()
    ]


def _group_by_class(summary: SplitSummary) -> dict[str, dict[str, str]]:
    splits: dict[str, dict[str, str]] = {}
    for split, classes in summary.items():
        for name, described in classes.items():
            splits.setdefault(name, {})[split] = described
    return splits


def _list_some(names: list[str]) -> str:
    more = f", ... {len(names) - NAMED_CLASSES:,} more" if len(names) > NAMED_CLASSES else ""
    return ", ".join(printable(name) for name in sorted(names)[:NAMED_CLASSES]) + more
