"""The reader of tar files in the layout of WebDataset: for millions of small images, above all on network disks."""

import logging
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dml.data.image_files.contents import index_tar, read_member
from dml.data.image_files.limits import LIST_OPTION, current_max_list_bytes, name_list_in_errors
from dml.data.image_listing import UNREAD_SUFFIXES, describe_unread, is_passed_over, read_suffixes
from dml.data.layout import Layout
from dml.data.splits import complete_splits, match_splits, number_classes, warn_of_names
from dml.data.table import RESERVED_LEVELS, SPLITS, ImageTable
from dml.runtime.errors import InputError
from dml.runtime.reading import parse_json
from dml.runtime.text import format_count, printable

logger = logging.getLogger(__name__)

LAYOUT = Layout(
    name="shards of your own",
    tree="*.tar, each image beside a file of the same name with its class, such as 0001.jpg and 0001.cls",
    page="docs/own_data.md",
)

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
"""Endings of tar files in lower case; of these, only files that end in ``.tar`` itself are read."""

Members = dict[str, str]
"""The members with the same name by their endings: {"jpg": "a/0001.jpg", "cls": "a/0001.cls"}."""


DOTTED = "{} with a dot in the name, such as {}; a name ends at the first dot, so pack them under other names"
NO_IMAGE = "{} without an image of the same name, such as {}; the names are compared up to the first dot"
NO_FILE = (
    "{}, such as {}, which dml doesn't read; pack the files themselves (tar --dereference --hard-dereference, without "
    "--sparse)"
)
SPLIT_FIELD = (
    "the splits of {} in JSON files, such as that of {}; only names say a split: pack tar files such as train-0.tar"
)
"""What warnings say of what the reader leaves out, with its number and the path of the first."""

LeftOut = dict[tuple[str, str], list[str]]
"""The paths of members that the reader leaves out, by what they are and what a warning says."""


def read(
    root: str | Path | None,
    *,
    labels: str | Sequence[str] = ("cls",),
    test_fraction: float | None = 0.5,
    val_fraction: float = 0.0,
    seed: int = 0,
) -> ImageTable:
    """Read the images of tar files, which hold each image beside files of the same name, up to the first dot.

    The tar files may not be compressed. A shard is part of the split that its path below the root names, such as
    ``train-0001.tar``, ``birds-valid.tar`` or ``train/0001.tar``, see `dml.data.splits.match_splits`. Without such
    names, the folders in the tar files may be splits; else whole classes are drawn for testing.

    Args:
        root: path of a tar file, or of a folder that holds tar files, at any depth.
        labels: places of the class of each level, from the finest to the coarsest: the ending of a text file, such
            as ``cls`` for ``0001.cls``, or a field of a JSON file, such as ``json.species`` for ``0001.json``. A string
            stands for a single level.
        test_fraction: see `dml.data.splits.complete_splits`, as for the next two.
        val_fraction: fraction of the training classes that is drawn for ``val``.
        seed: seed of the draws.

    Raises:
        InputError: if a tar file is damaged or compressed, an image has no class or several files, some shards have a
            split and some have none or two, the splits are incomplete, or ``labels`` is empty or not of strings.
    """
    places = _check_places(labels)
    paths: list[str] = []
    classes: list[list[str]] = []
    split: list[str] = []
    left_out: LeftOut = {("image", DOTTED): [], ("label file", NO_IMAGE): []}
    unread: list[str] = []
    for shard, shard_split in _find_shards(root).items():
        try:
            with name_list_in_errors(shard):
                for image, members in _group_members(shard, places, left_out, unread):
                    paths.append(f"{shard}/{image}")
                    classes.append([_read_class(shard, image, members, place, left_out) for place in places])
        except tarfile.TarError as error:
            raise InputError(
                f"{printable(shard)}: no tar file without compression that can be read ({error})"
            ) from error
        split += [shard_split] * (len(paths) - len(split))
    if any(split):
        left_out.pop(("image", SPLIT_FIELD), None)
    lines = [describe_unread(unread)] if unread else []
    for (kind, text), left_paths in left_out.items():
        lines += [text.format(format_count(len({*left_paths}), kind), printable(path)) for path in left_paths[:1]]
    for line in lines:
        logger.warning("left out: %s: %s", printable(root), line)
    if not paths:
        raise InputError(f"dataset.root={root}: no image in its tar files; give the path of {LAYOUT}")
    columns, names = zip(*(number_classes(level) for level in zip(*classes, strict=True)), strict=True)
    table = ImageTable(
        paths=np.array(paths),
        labels=np.stack(columns, axis=1),
        split=np.array(split),
        levels=_name_levels(places),
        names=names,
        source=str(root),
    )
    warn_of_names(table.labels, table.names, table.source)
    return complete_splits(table, test_fraction=test_fraction, val_fraction=val_fraction, seed=seed)


def _check_places(labels: Any) -> Sequence[str]:
    """Return where the class of each level stands, as a sequence of at least one."""
    places = [labels] if isinstance(labels, str) else labels
    remedy = "give where the classes stand, such as [cls] or [json.species]"
    if not places:
        raise InputError(f"dataset.reader.labels: empty; {remedy}")
    if not isinstance(places, Sequence) or not all(isinstance(place, str) and place for place in places):
        raise InputError(f"dataset.reader.labels={printable(labels)}: not names of endings and fields; {remedy}")
    if len({*places}) < len(places):
        raise InputError(f"dataset.reader.labels={printable(labels)}: one is there twice; {remedy}")
    return places


def _name_levels(places: Sequence[str]) -> tuple[str, ...]:
    """Name each level by the field that holds its class, or by ending and field where that name is taken.

    >>> _name_levels(["cls", "json.genus", "json.class", "json.path", "split"])
    ('class', 'genus', 'json_class', 'json_path', 'split_class')
    """
    levels: list[str] = []
    for place in places:
        name = "class" if place == "cls" else place.rpartition(".")[2]
        is_taken = name in RESERVED_LEVELS or not {name, f"{name}_name", name.removesuffix("_name")}.isdisjoint(levels)
        if is_taken:
            name = place.replace(".", "_") if "." in place else f"{place}_class"
        levels.append(name)
    return tuple(levels)


def _find_shards(root: str | Path | None) -> dict[Path, str]:
    """Return the tar files in the order of their paths, and the split of each, an empty string for none."""
    place = LAYOUT.root(root, "file or folder")
    if not os.path.isdir(place):
        if place.suffix != ".tar":  # `read_content` recognizes an archive by this ending
            raise InputError(f"dataset.root={root}: no .tar file; give the path of {LAYOUT}")
        return {place: ""}
    archives = sorted(
        path
        for path in place.rglob("*")
        if path.name.lower().endswith(TAR_SUFFIXES) and not is_passed_over(str(path.relative_to(place)))
    )
    shards = [path for path in archives if path.suffix == ".tar"]
    unread = [path for path in archives if path.suffix != ".tar"]
    description = (
        f"{format_count(len(unread), 'tar file')} that dml doesn't read, such as {printable(unread[0])}"
        if unread
        else ""
    )
    if not shards:
        addition = f", but {description}" if unread else ""
        raise InputError(f"dataset.root={root}: no .tar file in it{addition}; give the path of {LAYOUT}")
    if unread:
        logger.warning(
            "left out: %s: %s; unpack compressed ones, and end their names in .tar", printable(root), description
        )
    names = {shard: str(shard.relative_to(place).with_suffix("")) for shard in shards}
    splits = match_splits(names.values())
    for shard, name in names.items():
        if name not in splits and (splits or match_splits(Path(name).parts)):
            raise InputError(
                f"{printable(shard)}: its path names no split, or two of them, while others are named; one of "
                f"{', '.join(SPLITS)} in the name of each shard would do"
            )
    return {shard: splits.get(name, "") for shard, name in names.items()}


def _group_members(
    shard: Path, places: Sequence[str], left_out: LeftOut, unread: list[str]
) -> Iterator[tuple[str, Members]]:
    """Yield each image's name and the members beside it, and add the paths of other members to the last arguments.

    Images of kinds that aren't read are added to ``unread``, members without a place for a class to ``left_out``.
    """
    index = index_tar(str(shard))
    for kind, names in index.unread.items():
        visible = [f"{shard}/{name}" for name in names if not is_passed_over(os.path.normpath(name))]
        if visible:
            left_out.setdefault((kind, NO_FILE), []).extend(visible)
    label_endings = {place.partition(".")[0] for place in places}
    suffixes = read_suffixes()
    unread_suffixes = {*UNREAD_SUFFIXES} - {*suffixes}
    for members in _join_names(shard, index.entries).values():
        images = [member for ending, member in members.items() if f".{ending}" in suffixes]
        unread_here = [f"{shard}/{member}" for ending, member in members.items() if f".{ending}" in unread_suffixes]
        unread += unread_here
        if not images:
            left_out["image", DOTTED] += [
                f"{shard}/{member}"
                for ending, member in members.items()
                if os.path.splitext(f".{ending}")[1] in suffixes
            ]
        if not images and not unread_here:
            label_files = [f"{shard}/{member}" for ending, member in members.items() if ending in label_endings]
            left_out["label file", NO_IMAGE] += label_files[:1]
        if len(images) > 1:
            raise InputError(
                f"{printable(shard)}: {printable(images[0])} and {printable(images[1])} are both the image of one name"
            )
        for image in images:
            yield image, members


def _join_names(shard: Path, names: Iterable[str]) -> dict[str, Members]:
    """Return the members of a shard by folder and name, up to the first dot, and by the ending behind it."""
    samples: dict[str, Members] = {}
    for member in names:
        folder, name = os.path.split(member)
        stem, _, ending = name.partition(".")
        if is_passed_over(os.path.normpath(member)):
            continue
        other = samples.setdefault(f"{folder}/{stem}", {}).setdefault(ending.lower(), member)
        if other != member:
            raise InputError(
                f"{printable(shard)}: {printable(other)} and {printable(member)} differ in capitals alone; which one "
                "belongs to the image can't be told"
            )
    return samples


def _read_class(shard: Path, image: str, members: Members, place: str, left_out: LeftOut) -> str:
    """Read the class of an image from a text file, or from a field of a JSON file."""
    ending, _, key = place.partition(".")
    where = f"{printable(shard)}/{printable(image)}"
    if ending not in members:
        endings = ", ".join(sorted({*members} - {image.partition(".")[2].lower()})) or "nothing else"
        raise InputError(
            f"{where}: no .{ending} beside it, but {printable(endings)}; dataset.reader.labels says where the class is"
        )
    content = read_member(str(shard), members[ending], current_max_list_bytes(), LIST_OPTION)
    try:
        fields: Any = parse_json(content) if key else {"": content.decode("utf-8-sig")}
        value: Any = fields[key]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"no field {key}" if isinstance(error, KeyError) else f"{type(error).__name__}"
        raise InputError(f"{where}: its .{ending} gives no class ({reason})") from error
    if "split" in fields and place != f"{ending}.split":
        left_out.setdefault(("image", SPLIT_FIELD), []).append(where)
    if isinstance(value, str):
        value = value.strip()
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InputError(f"{where}: its class is {printable(repr(value))}, expected a name or a whole number")
    return str(value)
